"""What the model argument may be, and what is said when it is nothing."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.model.gguf_source import GgufSource
from core.model.safetensors_source import SafetensorsSource
from core.model.source import open_source
from core.model.spec import ModelSpec, WeightsPackage

SMALL = WeightsPackage("small", "core-test-weights", "1.0", ("core_test_weights/small.gguf",))


def test_folder_and_file(
    tiny_llama_dir: Path, make_gguf: Callable[..., Path], llama_specs: Sequence[ModelSpec]
) -> None:
    folder = open_source(str(tiny_llama_dir), [], llama_specs)
    file = open_source(str(make_gguf(tiny_llama_dir)), [], llama_specs)
    assert isinstance(folder, SafetensorsSource)
    assert isinstance(file, GgufSource)
    assert folder.name == str(tiny_llama_dir)


def test_alias_wins_over_a_folder_and_a_folder_over_the_hub(
    tiny_llama_dir: Path,
    make_gguf: Callable[..., Path],
    llama_specs: Sequence[ModelSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "site" / "core_test_weights"
    package.mkdir(parents=True)
    (package / "small.gguf").write_bytes(make_gguf(tiny_llama_dir).read_bytes())
    monkeypatch.syspath_prepend(package.parent)
    (tmp_path / "org").mkdir()
    (tmp_path / "small").symlink_to(tiny_llama_dir)
    (tmp_path / "org" / "name").symlink_to(tiny_llama_dir)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source("small", [SMALL], llama_specs), GgufSource)
    assert isinstance(open_source("./small", [SMALL], llama_specs), SafetensorsSource)
    assert isinstance(open_source("org/name", [SMALL], llama_specs), SafetensorsSource)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("llama9", r"model 'llama9' is not known: .* or a short name \(small\)"),
        ("", r"model '' is not known"),
        ("/no/such/folder", r"/no/such/folder does not exist"),
        ("./no/such", r"\./no/such does not exist"),
        ("no/such.gguf", r"no/such\.gguf does not exist"),
        (__file__, r"is a file that core does not read"),
    ],
)
def test_refused(model: str, message: str, llama_specs: Sequence[ModelSpec]) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_source(model, [SMALL], llama_specs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=["offline", "unreachable"]
)
def test_hub_out_of_reach(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from core.errors import ConfigError\nfrom core.model.source import open_source\n"
        "try:\n    open_source('some-org/some-model', [], [])\nexcept ConfigError as error:\n    print(error)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert out.startswith("model 'some-org/some-model' is no folder here and could not be had from the hub (")
    assert out.count("\n") == 1


def test_nothing_but_tensors_needs_torch(tiny_llama_dir: Path, smollm2_path: Path) -> None:
    code = f"""
import sys
from core.model.chat_template import render
from core.model.rope import read_rope
from core.model.source import open_source
from core.model.spec import ModelSpec
specs = [ModelSpec(("LlamaForCausalLM",), dict, lambda config, builder: None, "llama")]
for model in ({str(tiny_llama_dir)!r}, {str(smollm2_path)!r}):
    source = open_source(model, [], specs)
    messages = [{{"role": "user", "content": "hi"}}]
    text = render(source.chat_template, messages, special_tokens=source.special_tokens)
    assert source.tokenizer().encode(text) and source.eos_ids and source.size_bytes
    assert [source.shape(name) for name in source.names()]
    read_rope(source.config)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
