"""The fast reader reads what the library's own reads, and refuses damaged files."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import gguf
import pytest

from core.errors import ConfigError
from core.model.gguf_reader import GgufFile
from tests.core.model.mapped import resident_bytes


def test_same_values_as_the_library(tiny_llama_dir: Path, make_gguf: Callable[..., Path]) -> None:
    extra = {"test.floats": [0.5, -1.0], "test.bools": [True, False], "test.text": "größer"}
    path = make_gguf(tiny_llama_dir, metadata=extra)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        assert ours.get(key) == field.contents(), key
    assert [(t.name, t.data_offset) for t in ours.tensors.values()] == [(t.name, t.data_offset) for t in theirs.tensors]


def test_opens_a_real_file_fast(smollm2_path: Path) -> None:
    def open_s() -> float:
        start = perf_counter()
        GgufFile(smollm2_path)
        return perf_counter() - start

    assert min(open_s() for _ in range(3)) < 0.5


def test_gives_back_what_was_read(smollm2_path: Path) -> None:
    file = GgufFile(smollm2_path)
    sums = {name: int(file.stored(name).sum()) for name in file.tensors}
    *_, last = file.tensors
    assert resident_bytes(smollm2_path) < file.tensors[last].n_bytes + 2**21
    stored = file.stored("token_embd.weight")
    file.stored(last)
    assert int(stored.sum()) == sums["token_embd.weight"]


@pytest.mark.parametrize("part", [0.0, 0.001, 0.05, 0.2, 0.5, 0.9, 0.999])
def test_cut_file_is_refused(part: float, tiny_llama_dir: Path, make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    data = make_gguf(tiny_llama_dir).read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ConfigError, match="cut short or damaged; fetch it again"):
        GgufFile(path)


def test_other_files_are_refused(tmp_path: Path, make_bare_gguf: Callable[..., Path]) -> None:
    (tmp_path / "other.gguf").write_bytes(b"no model at all, but long enough to be one" * 10)
    with pytest.raises(ConfigError, match="GGUF magic invalid"):
        GgufFile(tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match="one of 3 parts"):
        GgufFile(make_bare_gguf({"split.count": 3}))


def test_other_byte_order_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="other byte order"):
        GgufFile(tmp_path / "big.gguf")


def test_missing_key_is_named(make_bare_gguf: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"no metadata key 'llama\.colour'"):
        GgufFile(make_bare_gguf()).require("llama.colour")
