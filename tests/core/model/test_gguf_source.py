"""A GGUF file gives the tensors and the config of the checkpoint it was made from."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core.errors import ConfigError
from core.kernels.schemes import QUANTISED
from core.model.gguf_source import TYPES, GgufSource, unpermute_rope
from core.model.rope import inverse_frequencies, read_rope
from core.model.spec import ModelSpec

Make = Callable[..., Path]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("variant", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}])
def test_same_tensors_as_the_checkpoint(
    variant: dict, make_llama: Make, make_gguf: Make, llama_specs: Sequence[ModelSpec]
) -> None:
    folder = make_llama(**variant)
    expected = checkpoint(folder)
    source = GgufSource(make_gguf(folder), "m", llama_specs)
    assert set(source.names()) == set(expected)
    for name, tensor in expected.items():
        assert source.shape(name) == tuple(tensor.shape)
        assert torch.equal(source.read(name), tensor), name
    assert source.config["tie_word_embeddings"] == variant.get("tie_word_embeddings", False)
    assert source.config["attention_bias"] == variant.get("attention_bias", False)


def test_config_says_what_config_json_says(
    tiny_llama_dir: Path, make_gguf: Make, llama_specs: Sequence[ModelSpec]
) -> None:
    source = GgufSource(make_gguf(tiny_llama_dir, metadata={"general.file_type": 0}), "m", llama_specs)
    original = json.loads((tiny_llama_dir / "config.json").read_text())
    original.update(rope_theta=original["rope_parameters"]["rope_theta"], torch_dtype=original["dtype"])
    for key, value in source.config.items():
        assert original[key] == value, key
    assert source.eos_ids == [2]
    assert source.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert source.chat_template is None
    assert source.generation_config == {}
    assert source.size_bytes == sum(t.nbytes for t in checkpoint(tiny_llama_dir).values())


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (slice(3, 20), None),
        (slice(32, 64), None),
        (None, slice(16, 48)),
        (slice(60, 64), slice(1, 2)),
        (slice(64, 64), None),
    ],
)
@pytest.mark.parametrize("name", [Q_PROJ, "model.embed_tokens.weight"])
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_part_of_a_tensor(
    type_name: str,
    name: str,
    rows: slice | None,
    columns: slice | None,
    tiny_llama_dir: Path,
    make_gguf: Make,
    llama_specs: Sequence[ModelSpec],
) -> None:
    source = GgufSource(make_gguf(tiny_llama_dir, type_name), "m", llama_specs)
    whole = source.read(name)
    expected = whole[rows or slice(None)][:, columns or slice(None)]
    assert torch.equal(source.read(name, rows, columns), expected)
    torch.testing.assert_close(whole, checkpoint(tiny_llama_dir)[name], rtol=0, atol=0.01)


def test_only_the_rows_asked_for_are_dequantised(
    tiny_llama_dir: Path, make_gguf: Make, llama_specs: Sequence[ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = GgufSource(make_gguf(tiny_llama_dir, "Q8_0"), "m", llama_specs)
    num_rows, dequantize = [], gguf.dequantize
    monkeypatch.setattr(gguf, "dequantize", lambda data, kind: num_rows.append(len(data)) or dequantize(data, kind))
    source.read(Q_PROJ, slice(5, 8))
    assert num_rows == [3]


def test_fix_that_changes_values(tiny_llama_dir: Path, make_gguf: Make) -> None:
    def minus_one(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
        return array - 1 if name.endswith("norm.weight") else array

    spec = ModelSpec(("LlamaForCausalLM",), dict, lambda config, builder: None, "llama", minus_one)
    source = GgufSource(make_gguf(tiny_llama_dir), "m", [spec])
    expected = checkpoint(tiny_llama_dir)["model.norm.weight"] - 1
    assert torch.equal(source.read("model.norm.weight"), expected)
    assert torch.equal(source.read("model.norm.weight", slice(4, 9)), expected[4:9])


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_is_read_by_rows(type_name: str, make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]) -> None:
    kind = gguf.GGMLQuantizationType[type_name]
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(0).integers(0, 100, (8, 256 // block * num_bytes), dtype=np.uint8)
    source = GgufSource(make_bare_gguf(tensors={"token_embd.weight": (stored, type_name)}), "m", llama_specs)
    name = "model.embed_tokens.weight"
    expected = torch.from_numpy(np.array(gguf.dequantize(stored, kind), dtype=np.float32))
    assert source.dtype(name) == {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(type_name, type_name)
    assert source.shape(name) == (8, 256)
    assert torch.equal(source.read(name), expected)
    assert torch.equal(source.read(name, slice(2, 5), slice(7, 99)), expected[2:5, 7:99])


@pytest.mark.parametrize("columns", [None, slice(32, 192)])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_quantised_tensor_is_what_gguf_dequantises(
    kind: str, columns: slice | None, make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]
) -> None:
    """With the rows in the order of the checkpoint."""
    wide = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    stored = gguf.quantize(wide, gguf.GGMLQuantizationType[kind])
    tensors = {"blk.0.attn_q.weight": (stored, kind), "blk.0.attn_v.weight": (wide, "F32")}
    source = GgufSource(make_bare_gguf(tensors=tensors), "m", llama_specs)
    name = "model.layers.0.self_attn.{}_proj.weight"
    tensor = source.quantised(name.format("q"))
    assert tensor is not None
    part = tensor.read(slice(3, 50), columns)
    assert isinstance(part, QUANTISED[tensor.scheme])
    assert [(p.shape, p.dtype) for p in part] == part.tensors(47, 256 if columns is None else 160)
    assert torch.equal(part.dequantised(), source.read(name.format("q"), slice(3, 50), columns))
    unpermuted = unpermute_rope(gguf.dequantize(stored, gguf.GGMLQuantizationType[kind]), 4)
    assert torch.equal(part.dequantised(), torch.from_numpy(unpermuted)[3:50, columns or slice(None)])
    assert source.quantised(name.format("v")) is None


def test_a_scale_that_has_no_minimum_is_refused(make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]) -> None:
    """The minimum of Q4_0 is 8 times its scale, and float16 ends at 65504."""
    stored = np.zeros((8, 144), np.uint8)
    blocks = stored.reshape(8, 8, 18)
    source = GgufSource(make_bare_gguf(tensors={"token_embd.weight": (stored, "Q4_0")}), "m", llama_specs)
    assert source.quantised("model.embed_tokens.weight").read(slice(0, 8)).minimum.eq(0).all()
    for scale, held in ((8188, True), (-8188, True), (8192, False), (-9000, False)):
        blocks[3, 2, :2] = np.array([scale], np.float16).view(np.uint8)
        source = GgufSource(make_bare_gguf(tensors={"token_embd.weight": (stored, "Q4_0")}), "m", llama_specs)
        tensor = source.quantised("model.embed_tokens.weight")
        assert tensor.read(slice(0, 3)).scale.eq(0).all()
        if held:
            assert tensor.read(slice(0, 8)).minimum[3, 2] == -8 * scale
        else:
            with pytest.raises(
                ConfigError, match=r"embed_tokens.weight has a scale of \d+.* up to 8188; .*dequantised"
            ):
                tensor.read(slice(0, 8))


def test_a_tensor_whose_values_a_fix_changes_is_not_given_quantised(make_bare_gguf: Make) -> None:
    spec = ModelSpec(("LlamaForCausalLM",), dict, lambda config, builder: None, "llama", lambda n, array, c: array * 2)
    stored = gguf.quantize(np.ones((8, 256), np.float32), gguf.GGMLQuantizationType.Q4_1)
    source = GgufSource(make_bare_gguf(tensors={"token_embd.weight": (stored, "Q4_1")}), "m", [spec])
    assert source.quantised("model.embed_tokens.weight") is None


def test_refused_by_name(
    tiny_llama_dir: Path, make_gguf: Make, make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]
) -> None:
    stored = np.zeros((8, 84), np.uint8)
    with pytest.raises(ConfigError, match=r"token_embd.weight of .* is of type Q2_K: core reads F32"):
        GgufSource(make_bare_gguf(tensors={"token_embd.weight": (stored, "Q2_K")}), "m", llama_specs)
    with pytest.raises(ConfigError, match="family 'llama': core knows these families in GGUF files: none"):
        GgufSource(make_bare_gguf(), "m", [])
    with pytest.raises(ConfigError, match=r"1 tensors that core has no place for, such as blk\.0\.ssm_a"):
        GgufSource(make_bare_gguf(tensors={"blk.0.ssm_a": (np.zeros(4, np.float32), "F32")}), "m", llama_specs)
    with pytest.raises(ConfigError, match="layers of different sizes"):
        GgufSource(make_bare_gguf({"llama.feed_forward_length": [256, 128]}), "m", llama_specs)
    source = GgufSource(make_gguf(tiny_llama_dir), "m", llama_specs)
    with pytest.raises(ConfigError, match=r"has no tensor model.layers.3.mlp.up_proj.weight"):
        source.read("model.layers.3.mlp.up_proj.weight")


def test_rope_scaling_in_metadata(make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]) -> None:
    prefix = "llama.rope.scaling"
    metadata = {f"{prefix}.type": "yarn", f"{prefix}.factor": 4.0, f"{prefix}.original_context_length": 128}
    source = GgufSource(make_bare_gguf({**metadata, "llama.rope.dimension_count": 32}), "m", llama_specs)
    rope = read_rope(source.config)
    assert (rope.kind, rope.factor, rope.original_max_len, rope.dim) == ("yarn", 4.0, 128, 32)


def test_llama3_rope_is_recovered_from_its_table(make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = {"hidden_size": 256, "num_attention_heads": 4, "rope_theta": 500000.0, "max_position_embeddings": 131072}
    scaled = inverse_frequencies(read_rope({**plain, "rope_scaling": scaling}))
    table = (inverse_frequencies(read_rope(plain)) / scaled).numpy()
    metadata = {"llama.rope.freq_base": 500000.0, "llama.context_length": 131072}
    tensors = {"rope_freqs.weight": (table, "F32")}
    source = GgufSource(make_bare_gguf(metadata, tensors), "m", llama_specs)
    assert torch.equal(inverse_frequencies(read_rope(source.config)), scaled)
    assert source.config["rope_scaling"] == scaling
    with pytest.raises(ConfigError, match="not Llama 3's"):
        GgufSource(make_bare_gguf(metadata, {"rope_freqs.weight": (table[::-1].copy(), "F32")}), "m", llama_specs)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ({"eos_token_id": 1}, [1, 4]),
        ({"eos_token_id": 1, "eot_token_id": 2, "eom_token_id": 3}, [1, 2, 3]),
        ({}, [4]),
    ],
)
def test_eos_ids(
    ids: dict[str, int], expected: list[int], make_bare_gguf: Make, llama_specs: Sequence[ModelSpec]
) -> None:
    tokens = ["<unk>", "</s>", "<eot>", "<eom>", "<|eot_id|>", "<|im_end|>"]
    metadata = {"tokens": tokens, "token_type": [2, 3, 3, 3, 3, 1], **ids}
    path = make_bare_gguf({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    assert GgufSource(path, "m", llama_specs).eos_ids == expected


def test_unpermute_rope_takes_weights_and_biases() -> None:
    rows = np.arange(8)
    assert unpermute_rope(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert unpermute_rope(rows[:, None], 2).shape == (8, 1)
