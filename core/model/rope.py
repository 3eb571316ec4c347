"""Rotary position embedding: from a checkpoint's config to the table of cosines and sines.

Owns the frequency formulas and their checks. Refuses, by name, kinds of scaling that need the length of the
sequence at run time (longrope, and dynamic beyond the original length) or that it does not know.

Reads both spellings of config.json: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.

Sources: RoFormer, arXiv:2104.09864 (rotation); Chen et al., arXiv:2306.15595 (linear: position interpolation);
YaRN, arXiv:2309.00071; Llama 3, arXiv:2407.21783 (llama3: long wavelengths slowed, short ones kept).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError

if TYPE_CHECKING:
    import torch

DEFAULT_THETA = 10000.0
KINDS = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn queries and keys.

    kind                 one of KINDS
    dim                  F: leading dimensions of a head that are rotated, even
    theta                base of the wavelengths
    factor               by how much the context was stretched
    original_max_len     positions before stretching
    attention_factor     multiplies cosines and sines
    beta_fast, beta_slow yarn: rotations over the original length above which a frequency is kept, below which slowed
    truncate             yarn: round the borders between the two to whole dimensions
    low_freq_factor, high_freq_factor   llama3: original length / wavelength at those two borders
    """

    kind: str
    dim: int
    theta: float
    factor: float = 1.0
    original_max_len: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


def read_rope(config: Mapping[str, Any], max_len: int | None = None) -> RopeConfig:
    """The rope settings in a config.json, for sequences of up to `max_len` tokens (None: what the config says).

    Raises: ConfigError naming a kind, or a missing or wrong value, that cannot be served.
    """
    params = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}
    params.update(config.get("rope_parameters") or {})
    if any(isinstance(value, Mapping) for value in params.values()):
        raise ConfigError("rope_parameters differ between kinds of layers: only one set for all layers can be served")
    original = config.get("original_max_position_embeddings") or params.get("original_max_position_embeddings")
    original = int(original or config.get("max_position_embeddings") or 0)
    kind = _kind(params, original, max_len or int(config.get("max_position_embeddings") or 0))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    partial = params.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    dim = int(head_dim * partial)
    if dim % 2:
        raise ConfigError(f"rope rotates {dim} dimensions of a head: the number must be even")
    theta = float(params.get("rope_theta") or DEFAULT_THETA)
    if kind == "default":
        return RopeConfig(kind, dim, theta, original_max_len=original)
    factor = _number(params, "factor", kind)
    if kind == "linear":
        return RopeConfig(kind, dim, theta, factor, original)
    if original < 1:
        raise ConfigError(f"rope scaling {kind!r} needs original_max_position_embeddings in config.json")
    if kind == "yarn":
        return _read_yarn(params, RopeConfig(kind, dim, theta, factor, original))
    low, high = (_number(params, name, kind) for name in ("low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ConfigError(f"rope scaling llama3 has low_freq_factor {low}: it must be below high_freq_factor {high}")
    return RopeConfig(kind, dim, theta, factor, original, low_freq_factor=low, high_freq_factor=high)


def _kind(params: Mapping[str, Any], original: int, max_len: int) -> str:
    kind = str(params.get("rope_type") or params.get("type") or "default")
    if kind == "dynamic":
        if max_len > original:
            raise ConfigError(
                f"rope scaling 'dynamic' changes with the length of a sequence beyond {original} tokens, and {max_len} "
                f"are asked for: set the maximum length to {original} or less, or use a checkpoint with yarn"
            )
        return "default"
    if kind not in KINDS:
        raise ConfigError(f"rope scaling {kind!r} is not supported: core serves {', '.join(KINDS)} and dynamic")
    return kind


def _number(params: Mapping[str, Any], name: str, kind: str) -> float:
    value = params.get(name)
    if not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"rope scaling {kind!r} has {name} {value!r}: it must be a number above 0")
    return float(value)


def _read_yarn(params: Mapping[str, Any], base: RopeConfig) -> RopeConfig:
    """Adds what only yarn has. The attention factor follows equation 22 of the paper where none is given."""
    attention = params.get("attention_factor")
    if attention is None:
        mscale, mscale_all_dim = params.get("mscale"), params.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            attention = _mscale(base.factor, mscale) / _mscale(base.factor, mscale_all_dim)
        else:
            attention = _mscale(base.factor, 1.0)
    return RopeConfig(
        base.kind,
        base.dim,
        base.theta,
        base.factor,
        base.original_max_len,
        attention_factor=float(attention),
        beta_fast=float(params.get("beta_fast") or 32.0),
        beta_slow=float(params.get("beta_slow") or 1.0),
        truncate=bool(params.get("truncate", True)),
    )


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Radians per position of each pair of dimensions: [F/2] float32.

    Computed in float32 in the order that checkpoints were trained with: at 100,000 positions a different rounding
    of the frequencies would show.
    """
    import torch

    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    inverse: torch.Tensor = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inverse / rope.factor
    if rope.kind == "yarn":
        return _yarn(rope, exponents)
    if rope.kind == "llama3":
        return _llama3(rope, inverse)
    return inverse


def _yarn(rope: RopeConfig, exponents: torch.Tensor) -> torch.Tensor:
    """Kept above `beta_fast` rotations, slowed by `factor` below `beta_slow`, a ramp between. Section 3.2."""
    import torch

    wavelengths = rope.theta**exponents
    low, high = (_yarn_border(rope, rotations) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep


def _yarn_border(rope: RopeConfig, rotations: float) -> float:
    """The dimension that turns `rotations` times over the original length."""
    return rope.dim * math.log(rope.original_max_len / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))


def _llama3(rope: RopeConfig, inverse: torch.Tensor) -> torch.Tensor:
    import torch

    wavelengths = 2 * math.pi / inverse
    low, high = rope.low_freq_factor, rope.high_freq_factor
    slowed = inverse / rope.factor
    smooth = (rope.original_max_len / wavelengths - low) / (high - low)
    blended = (1 - smooth) * slowed + smooth * inverse
    out = torch.where(wavelengths > rope.original_max_len / low, slowed, blended)
    return torch.where(wavelengths < rope.original_max_len / high, inverse, out)


def cos_sin_table(rope: RopeConfig, max_len: int) -> torch.Tensor:
    """Cosines, then sines, of every position, times the attention factor: [max_len, F] float32."""
    import torch

    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), inverse_frequencies(rope))
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * rope.attention_factor
