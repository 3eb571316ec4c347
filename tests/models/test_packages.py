"""The short names that come with core."""

from pathlib import Path

from core.model.gguf_reader import GgufFile
from core.model.weights_package import locate_package
from models.packages import core_weights

PACKAGES = {package.alias: package for package in core_weights()}


def test_smollm2_is_the_installed_file() -> None:
    path = locate_package(PACKAGES["smollm2"])
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert GgufFile(path).get("general.basename") == "smollm2"


def test_parts_are_in_order_and_their_sum_is_known() -> None:
    gemma = PACKAGES["gemma3-270m"]
    assert [Path(file).suffix for file in gemma.files] == [".part00", ".part01", ".part02", ".part03"]
    assert [Path(file).parts[0][-1] for file in gemma.files] == ["1", "2", "3", "4"]
    assert gemma.sha256 is not None
    assert len(bytes.fromhex(gemma.sha256)) == 32
