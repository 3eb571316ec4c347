"""Tables agree with transformers' to 1e-6, for every kind of scaling."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from core.errors import ConfigError
from core.model.rope import cos_sin_table, inverse_frequencies, read_rope

BASE = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 8192, "rope_theta": 500000.0}
SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.5},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
        "attention_factor": 1.25,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 1024,
    },
]


def name_of(scaling: dict | None) -> str:
    return "default" if scaling is None else f"{scaling.get('rope_type', scaling.get('type'))}-{scaling['factor']:g}"


@pytest.mark.parametrize("scaling", SCALINGS, ids=name_of)
def test_same_as_transformers(scaling: dict | None) -> None:
    oracle = LlamaRotaryEmbedding(LlamaConfig(**BASE, rope_scaling=scaling and dict(scaling)))
    rope = read_rope({**BASE, "rope_scaling": scaling})
    assert torch.equal(inverse_frequencies(rope), oracle.inv_freq)
    cos, sin = oracle(torch.zeros(1), torch.arange(3000)[None])
    expected = torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=-1)
    torch.testing.assert_close(cos_sin_table(rope, 3000), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scaling", SCALINGS[1:], ids=name_of)
def test_newer_spelling_means_the_same(scaling: dict) -> None:
    newer = {key: value for key, value in BASE.items() if key != "rope_theta"}
    newer["rope_parameters"] = {**scaling, "rope_theta": 500000.0}
    assert read_rope(newer) == read_rope({**BASE, "rope_scaling": scaling})


def test_part_of_a_head_is_rotated() -> None:
    rope = read_rope({**BASE, "head_dim": 64, "partial_rotary_factor": 0.25})
    assert rope.dim == 16
    assert cos_sin_table(rope, 5).shape == (5, 16)


def test_dynamic_is_plain_up_to_the_original_length() -> None:
    config = {**BASE, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    oracle_config = LlamaConfig(**BASE, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](oracle_config, seq_len=8192)
    assert torch.equal(inverse_frequencies(read_rope(config, 8192)), expected)
    with pytest.raises(ConfigError, match="beyond 8192 tokens, and 8193"):
        read_rope(config, 8193)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor None"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -1.0}}, "factor -1.0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "max_position_embeddings": None}, "needs original"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            "must be below",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "only one set"),
        ({"head_dim": 7}, "must be even"),
    ],
)
def test_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_rope({**BASE, **change})
