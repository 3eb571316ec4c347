"""What model files declare of embeddings, and what is made of a hidden state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import LLM
from core.errors import ConfigError
from core.model.convert import convert
from core.model.gguf_source import GgufSource
from core.model.pooling import Pooling
from core.model.safetensors_source import SafetensorsSource
from core.model.spec import ModelSpec
from tests.core.engine.embedding import worst_error
from tests.models.tiny import declare_pooling

Make = Callable[..., Path]


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def declared(folder: Path) -> Pooling | None:
    return SafetensorsSource(folder, "m").pooling


def test_a_folder_that_declares_nothing(make_llama: Make) -> None:
    folder = make_llama()
    assert declared(folder) is None
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    assert declared(folder) is None


@pytest.mark.parametrize(
    ("mode", "normalize", "more", "kind"),
    [
        ("pooling_mode_lasttoken", True, (), "last"),
        ("pooling_mode_lasttoken", False, (), "last"),
        ("pooling_mode_mean_tokens", True, (), "mean"),
        ("pooling_mode_cls_token", False, (), "cls"),
        ("of no kind", False, (), "nothing"),
        ("pooling_mode_lasttoken", True, ("Dense",), "last, in modules Transformer, Pooling, Dense, Normalize"),
    ],
)
def test_a_folder_of_sentence_transformers(make_llama: Make, mode: str, normalize: bool, more: Any, kind: str) -> None:
    assert declared(declare_pooling(make_llama(), mode, normalize, more)) == Pooling(kind, normalize)


@pytest.mark.parametrize(("named", "kind"), [("lasttoken", "last"), ("mean", "mean"), (["cls", "mean"], "cls+mean")])
def test_the_newer_entry_with_the_name_alone(make_llama: Make, named: object, kind: str) -> None:
    folder = declare_pooling(make_llama())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": named}))
    assert declared(folder) == Pooling(kind, True)


def test_several_are_joined(make_llama: Make) -> None:
    folder = declare_pooling(make_llama())
    edit(folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=True)
    assert declared(folder) == Pooling("mean+lasttoken", True)


@pytest.mark.parametrize("entry", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_attention_to_later_tokens_is_no_last_token_pooling(make_llama: Make, entry: dict[str, Any]) -> None:
    folder = declare_pooling(make_llama())
    edit(folder / "config.json", **entry)
    assert declared(folder) == Pooling("last, after bidirectional attention", True)


@pytest.mark.parametrize("content", ["{", '{"a": 1}', '[{"path": "1_Pooling"}]', "[3]"])
def test_modules_that_cannot_be_read(make_llama: Make, content: str) -> None:
    folder = declare_pooling(make_llama())
    (folder / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=r"modules\.json, which declares embeddings, cannot be read"):
        declared(folder)


def test_a_pooling_config_that_is_missing(make_llama: Make) -> None:
    folder = declare_pooling(make_llama())
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"1_Pooling/config\.json, which declares embeddings"):
        declared(folder)


@pytest.mark.parametrize(
    ("metadata", "pooling"),
    [
        ({}, None),
        ({"llama.pooling_type": 0}, None),
        ({"llama.pooling_type": 1}, Pooling("mean", True)),
        ({"llama.pooling_type": 3}, Pooling("last", True)),
        ({"llama.pooling_type": 4}, Pooling("rank", True)),
        ({"llama.pooling_type": 9}, Pooling("type 9", True)),
        ({"llama.pooling_type": 3, "llama.attention.causal": True}, Pooling("last", True)),
        (
            {"llama.pooling_type": 3, "llama.attention.causal": False},
            Pooling("last, after bidirectional attention", True),
        ),
    ],
)
def test_a_gguf_file(
    metadata: dict[str, Any], pooling: Pooling | None, make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]
) -> None:
    assert GgufSource(make_bare_gguf(metadata), "m", llama_specs).pooling == pooling


def test_a_gguf_file_gives_embeddings(make_llama: Make, make_gguf: Make) -> None:
    folder, prompt = make_llama(), list(range(3, 60))
    path = make_gguf(folder, metadata={"llama.pooling_type": 3})
    with LLM(str(path), device="cpu", dtype="float32", num_kv_blocks=50) as llm:
        assert worst_error(folder, [prompt], [llm.embed(prompt)[0].embedding], normalize=True) <= 1e-5


@pytest.mark.parametrize("normalize", [True, False])
def test_converting_keeps_the_declaration(make_llama: Make, tmp_path: Path, normalize: bool) -> None:
    source = SafetensorsSource(declare_pooling(make_llama(), normalize=normalize), "m")
    convert(source, tmp_path / "out", "float32")
    assert declared(tmp_path / "out") == source.pooling == Pooling("last", normalize)


def test_converting_declares_nothing_that_core_does_not_serve(make_llama: Make, tmp_path: Path) -> None:
    convert(
        SafetensorsSource(declare_pooling(make_llama(), "pooling_mode_mean_tokens"), "m"), tmp_path / "out", "float32"
    )
    assert declared(tmp_path / "out") is None


def test_an_embedding_is_the_hidden_state_or_that_over_its_norm() -> None:
    row = np.array([3.0, -4.0, 0.0], "<f4")
    assert Pooling("last", False).finish(row.tobytes()) == row.tobytes()
    made = Pooling("last", True).finish(row.tobytes())
    assert made is not None
    assert np.frombuffer(made, "<f4").tolist() == [np.float32(0.6), np.float32(-0.8), 0]


@pytest.mark.parametrize("row", [[0.0, 0.0], [1e30, -1e30], [1e-20, 0.0]])
def test_norms_that_float32_does_not_hold(row: list[float]) -> None:
    made = Pooling("last", True).finish(np.array(row, "<f4").tobytes())
    assert made is not None
    wanted = np.array(row) / max(np.linalg.norm(row), 1e-12)
    np.testing.assert_allclose(np.frombuffer(made, "<f4"), wanted, rtol=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_no_number_is_no_embedding(wrong: float, normalize: bool) -> None:
    assert Pooling("last", normalize).finish(np.array([1.0, wrong], "<f4").tobytes()) is None
