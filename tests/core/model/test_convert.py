"""A converted model is the same model, for core and for transformers."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.errors import ConfigError
from core.model.convert import convert
from core.model.safetensors_source import SafetensorsSource
from core.model.source import ModelSource, open_source
from core.model.spec import ModelSpec

TEXTS = [
    "",
    "Hello, world!",
    " 1234567890 3.14 x86_64 2024-11-29",
    "def f(x):\n\treturn [i ** 2 for i in range(x)]  # squares\n\n\n",
    "größer naïve 你好世界 こんにちは 👩‍👩‍👧 e\u0301 \u200b",
    "   leading, double  and trailing spaces   ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "don't we'll I'M <|im_start|",
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, llama_specs: Sequence[ModelSpec]) -> ModelSource:
    return open_source(str(smollm2_path), [], llama_specs)


@pytest.fixture(scope="module")
def converted(smollm2: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model in float32, in files of up to 200 MB."""
    folder = tmp_path_factory.mktemp("smollm2")
    seen: list[tuple[int, int]] = []
    convert(smollm2, folder, "float32", progress=lambda *step: seen.append(step), max_shard_bytes=200_000_000)
    assert seen == [(i + 1, 272) for i in range(272)]
    return folder


def test_tokens_are_the_same(smollm2: ModelSource, converted: Path) -> None:
    again, oracle = SafetensorsSource(converted, "again"), AutoTokenizer.from_pretrained(converted)
    for text in TEXTS:
        ids = smollm2.tokenizer().encode(text)
        assert again.tokenizer().encode(text) == ids == oracle.encode(text), text
        assert smollm2.tokenizer().decode(ids, skip_special_tokens=False) == text
        assert smollm2.tokenizer().decode(ids) == oracle.decode(ids, skip_special_tokens=True)
    assert again.eos_ids == smollm2.eos_ids == [2]
    assert again.special_tokens == smollm2.special_tokens
    assert again.chat_template == smollm2.chat_template


def test_tensors_are_the_same(smollm2: ModelSource, converted: Path) -> None:
    again = SafetensorsSource(converted, "again")
    assert set(again.names()) == set(smollm2.names())
    assert len(list(converted.glob("*.safetensors"))) == 3
    assert json.loads((converted / "model.safetensors.index.json").read_text())["metadata"]["total_size"] > 500e6
    for name in smollm2.names():
        assert torch.equal(again.read(name), smollm2.read(name)), name


def test_transformers_continues_text_sensibly(converted: Path) -> None:
    """Wrong rows of q and k, or a wrong theta, would not give this."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(converted), AutoTokenizer.from_pretrained(converted)
    assert model.dtype == torch.float32
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids["input_ids"].shape[1] :])


def test_one_file_in_low_precision(tiny_llama_dir: Path, tmp_path: Path) -> None:
    source = SafetensorsSource(tiny_llama_dir, "tiny")
    convert(source, tmp_path / "out", "bfloat16")
    again = SafetensorsSource(tmp_path / "out", "again")
    assert {again.dtype(name) for name in again.names()} == {"bfloat16"}
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors*")] == ["model.safetensors"]
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(again.read(name), source.read(name).bfloat16())
    assert again.config["torch_dtype"] == "bfloat16"
    assert "dtype" not in again.config


def test_refused(tiny_llama_dir: Path, tmp_path: Path) -> None:
    source = SafetensorsSource(tiny_llama_dir, "tiny")
    with pytest.raises(ConfigError, match="holds a checkpoint already"):
        convert(source, tiny_llama_dir, "float32")
    with pytest.raises(ConfigError, match="dtype 'int8' is not known: use float32, bfloat16, float16"):
        convert(source, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()
