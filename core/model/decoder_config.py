"""Reading config.json of the families that are decoders: what they have in common, and refusals by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import ConfigError
from core.kv.groups import Place, group_layers
from core.model.rope import RopeConfig, read_rope
from core.model.spec import ModelConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"
Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """What a `core.model.decoder.Decoder` is made from.

    places     where each layer's cache is
    ropes      each gives a table of cosines and sines
    norm_add   added to the weights of norms: 1 where checkpoints hold them less 1
    tied       the head's weight is the embedding's
    widest     layers that see the most at the model's own length, whatever length is asked for
    """

    num_heads: int
    inner_size: int
    norm_eps: float
    places: tuple[Place, ...]
    ropes: tuple[RopeConfig, ...]
    tied: bool
    widest: tuple[int, ...]
    norm_add: float = 0.0


def read_decoder(
    raw: Raw,
    max_len: int | None,
    *,
    windows: Sequence[int | None] | None = None,
    ropes: tuple[RopeConfig, ...] | None = None,
    head_size: int | None = None,
    tied: bool = False,
) -> dict[str, Any]:
    """The fields of a `DecoderConfig`.

    windows           per layer: tokens that a token sees, or None for all
    ropes             where `read_rope` of the whole config is not what layers use
    head_size, tied   what this family takes where the config does not say

    Raises: ConfigError when a value is missing or cannot be served.
    """
    heads, layers = required(raw, "num_attention_heads"), required(raw, "num_hidden_layers")
    hidden, inner = required(raw, "hidden_size"), required(raw, "intermediate_size")
    kv_heads = raw.get("num_key_value_heads") or heads
    head_size = raw.get("head_dim") or head_size or hidden // heads
    length = required(raw, "max_position_embeddings")
    windows = windows or [None] * layers
    groups, places = group_layers(windows, kv_heads, head_size, max_len or length)
    _, own = group_layers(windows, kv_heads, head_size, length)
    return {
        "vocab_size": required(raw, "vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "max_len": length,
        "dtype": raw.get("dtype") or raw.get("torch_dtype") or "float32",
        "kv_groups": groups,
        "split": {"KV heads": kv_heads, "attention heads": heads, "MLP columns": inner},
        "num_heads": heads,
        "inner_size": inner,
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "places": places,
        "ropes": ropes or (read_rope({**raw, "head_dim": head_size}, max_len),),
        "tied": raw.get("tie_word_embeddings", tied),
        "widest": tuple(i for i, place in enumerate(own) if place.group == 0),
    }


def required(raw: Raw, name: str) -> Any:
    """Raises: ConfigError when config.json does not have it."""
    value = raw.get(name)
    if value is None:
        raise ConfigError(f"config.json has no {name}: it is incomplete; fetch it again")
    return value


def only(family: str, raw: Raw, name: str, served: object) -> None:
    """Raises: ConfigError when config.json has another value than the one that the family is served with."""
    value = raw.get(name, served)
    if value != served:
        how = f"with {served} only" if served else "without it"
        raise ConfigError(f"{name} is {value}: the {family} family is served {how}")


def read_windows(family: str, raw: Raw, window: int | None, slides: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window.

    window   of the layers that have one
    slides   whether layer i has one, where the config has no `layer_types`

    Raises: ConfigError for kinds of layers that are not served, and for windows without a size.
    """
    layers = required(raw, "num_hidden_layers")
    kinds = raw.get("layer_types") or [_SLIDING if slides(i) else _FULL for i in range(layers)]
    unknown = set(kinds) - {_FULL, _SLIDING}
    if unknown:
        raise ConfigError(f"layer_types has {min(unknown)}: the {family} family is served with {_FULL} and {_SLIDING}")
    if len(kinds) != layers:
        raise ConfigError(f"layer_types has {len(kinds)} entries and num_hidden_layers is {layers}: they must agree")
    if _SLIDING in kinds and not window:
        raise ConfigError(f"layer_types has {_SLIDING} and no sliding_window is in use: set its size")
    return [window if kind == _SLIDING else None for kind in kinds]
