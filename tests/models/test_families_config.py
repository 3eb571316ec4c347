"""What a config.json comes to, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ConfigError
from core.kv.groups import KVGroup, Place, group_layers
from models import gemma3, llama, mistral, phi3, qwen2, qwen3, smollm3

READERS = {
    "gemma3": gemma3.read_config,
    "llama": llama.read_config,
    "mistral": mistral.read_config,
    "phi3": phi3.read_config,
    "qwen2": qwen2.read_config,
    "qwen3": qwen3.read_config,
    "smollm3": smollm3.read_config,
}
RAW: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip


def read(family: str, max_len: int | None = None, **more: Any) -> Any:
    return READERS[family]({**RAW, **more}, max_len)


# As published checkpoints write it


def test_mistral_with_and_without_a_window() -> None:
    assert read("mistral", sliding_window=None).kv_groups == (KVGroup(8, 2, 16),)
    config = read("mistral", sliding_window=1024, head_dim=32)
    assert config.kv_groups == (KVGroup(8, 2, 32, retain=1024),)
    assert config.places == tuple(Place(0, i) for i in range(8))
    assert read("mistral", sliding_window=4096).kv_groups[0].retain is None, "as long as any sequence may be"
    assert read("mistral", max_len=512, sliding_window=1024).kv_groups[0].retain is None


def test_qwen2_uses_its_window_only_where_it_says_so() -> None:
    window = {"sliding_window": 100, "max_window_layers": 6}
    assert read("qwen2", use_sliding_window=False, **window).kv_groups == (KVGroup(8, 2, 16),)
    config = read("qwen2", use_sliding_window=True, **window)
    assert config.kv_groups == (KVGroup(6, 2, 16), KVGroup(2, 2, 16, retain=100))
    assert config.places[5:] == (Place(0, 5), Place(1, 0), Place(1, 1))


def test_qwen3_heads_have_128_dimensions_where_nothing_is_said() -> None:
    assert read("qwen3").kv_groups == (KVGroup(8, 2, 128),)
    assert read("qwen3", head_dim=64).ropes[0].dim == 64


def test_gemma3_of_the_first_checkpoints() -> None:
    """One layer in six is global; the scaling of rope is for those alone."""
    config = read(
        "gemma3", sliding_window=512, sliding_window_pattern=6, rope_theta=1_000_000, rope_local_base_freq=10_000,
        rope_scaling={"rope_type": "linear", "factor": 8.0}, query_pre_attn_scalar=168, head_dim=256,
    )  # fmt: skip
    assert config.kv_groups == (KVGroup(1, 2, 256), KVGroup(7, 2, 256, retain=512))
    assert config.local == (True,) * 5 + (False,) + (True,) * 2
    full, local = config.ropes
    assert (full.kind, full.theta, full.factor) == ("linear", 1_000_000, 8)
    assert (local.kind, local.theta, local.factor) == ("default", 10_000, 1)
    assert config.query_scale == 168**-0.5
    assert config.tied
    assert config.final_softcap is None


def test_gemma3_as_transformers_writes_it_now() -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    config = read("gemma3", sliding_window=64, layer_types=kinds * 2, rope_parameters=ropes)
    assert [(rope.kind, rope.theta) for rope in config.ropes] == [("linear", 5e5), ("default", 2e4)]
    assert [group.num_layers for group in config.kv_groups] == [2, 6]


def test_local_layers_keep_their_rope_where_their_window_is_no_limit() -> None:
    config = read("gemma3", max_len=256, sliding_window=512, sliding_window_pattern=2)
    assert config.kv_groups == (KVGroup(8, 2, 256),)
    assert config.local == (True, False) * 4


def test_phi3_turns_a_part_of_each_head() -> None:
    config = read("phi3", sliding_window=2047, partial_rotary_factor=0.5)
    assert config.ropes[0].dim == 8
    assert config.kv_groups == (KVGroup(8, 2, 16, retain=2047),)


def test_smollm3_every_fourth_layer_does_not_see_positions() -> None:
    config = read("smollm3")
    assert config.turned == (True, True, True, False) * 2
    assert config.tied
    config = read("smollm3", use_sliding_window=True, sliding_window=99)
    assert config.kv_groups == (KVGroup(6, 2, 16), KVGroup(2, 2, 16, retain=99))


def test_layers_of_several_windows() -> None:
    groups, places = group_layers([8, None, 4, 8, 200], 2, 16, max_len=100)
    assert groups == (KVGroup(2, 2, 16), KVGroup(1, 2, 16, retain=4), KVGroup(2, 2, 16, retain=8))
    assert places == (Place(2, 0), Place(0, 0), Place(1, 0), Place(2, 1), Place(0, 1))


# What is refused


@pytest.mark.parametrize("family", READERS)
@pytest.mark.parametrize("name", ["vocab_size", "num_hidden_layers", "hidden_size", "max_position_embeddings"])
def test_what_is_missing_is_named(family: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"config.json has no {name}"):
        read(family, **{name: None})


@pytest.mark.parametrize("family", READERS)
def test_other_activations_are_refused(family: str) -> None:
    name = "hidden_activation" if family == "gemma3" else "hidden_act"
    with pytest.raises(ConfigError, match=f"{name} is relu: the {family} family is served with"):
        read(family, **{name: "relu"})


LONGROPE = {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("mistral", {"layer_types": ["full_attention"] * 8}, "layer_types is .* the mistral family is served without"),
        ("qwen3", {"layer_types": ["linear_attention"] * 8}, "layer_types has linear_attention"),
        ("qwen3", {"layer_types": ["full_attention"] * 7}, "has 7 entries and num_hidden_layers is 8"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 8}, "no sliding_window is in use"),
        ("smollm3", {"layer_types": ["chunked_attention"] * 8}, "layer_types has chunked_attention"),
        ("gemma3", {"vision_config": {}}, "reads images"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0: .* without it"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("phi3", {"rope_scaling": LONGROPE}, "longrope"),
        ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "mrope"),
    ],
)
def test_what_is_not_served_is_refused_by_name(family: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(family, **config)
