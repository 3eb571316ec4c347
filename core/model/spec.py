"""How a model family is registered.

A family is one file in `models/` with a `ModelSpec`. Layers declare their parameters, and the names these have
in a checkpoint, as they are built; nothing else maps weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.kv.groups import KVGroup

if TYPE_CHECKING:
    import numpy as np

    from core.model.layers import Builder, Model


@dataclass(frozen=True)
class Shard:
    """This process's part of a model that is split over `size` ranks."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class ModelConfig:
    """What core must know of any model. Families extend it with what their layers need.

    max_len             positions the model was made for
    original_max_len    positions before rope scaling (equal to max_len without)
    kv_groups           what the attention layers cache, per group
    split               things that tensor parallelism must divide: name -> count
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_len: int
    dtype: str
    kv_groups: tuple[KVGroup, ...]
    split: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSpec:
    """One family.

    architectures   names in a checkpoint's config.json
    read_config     config.json as a dict, max length asked for or None -> ModelConfig.
                    Raises ConfigError naming a value it cannot serve.
    build           declares parameters and binds kernels; weights are loaded later
    gguf_arch       name of the family in GGUF files, or None
    gguf_fix        undoes what GGUF conversion did to a tensor: (checkpoint name, array, config) -> array
    gguf_config     entries of config.json that this family's GGUF files name otherwise or leave out:
                    (metadata of the family by name, config so far) -> entries
    """

    architectures: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any], int | None], Any]
    build: Callable[[Any, Builder], Model]
    gguf_arch: str | None = None
    gguf_fix: Callable[[str, np.ndarray, Mapping[str, Any]], np.ndarray] | None = None
    gguf_config: Callable[[Callable[[str], Any], Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class WeightsPackage:
    """Weights that come as an installed Python package.

    alias           what the user types as model
    distribution    the package, for the message when it is absent
    version         that was tried
    files           GGUF files, relative to site-packages; several are parts to be joined in order
    sha256          of the joined file, checked when parts are joined
    """

    alias: str
    distribution: str
    version: str
    files: tuple[str, ...]
    sha256: str | None = None
