"""A model's files with more tensors beside them, for one `Loader`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.model.source import ModelSource, QuantisedTensor

if TYPE_CHECKING:
    import torch

    from core.model.pooling import Pooling
    from core.model.tokenizer import Tokenizer


class Extended:
    """A `ModelSource`: all that `base` is. What has more tensors says otherwise of tensors."""

    def __init__(self, base: ModelSource) -> None:
        self._base = base

    @property
    def name(self) -> str:
        return self._base.name

    @property
    def config(self) -> Mapping[str, Any]:
        return self._base.config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self._base.generation_config

    @property
    def eos_ids(self) -> list[int]:
        return self._base.eos_ids

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return self._base.special_tokens

    @property
    def chat_template(self) -> str | None:
        return self._base.chat_template

    @property
    def pooling(self) -> Pooling | None:
        return self._base.pooling

    @property
    def size_bytes(self) -> int:
        return self._base.size_bytes

    def tokenizer(self) -> Tokenizer:
        return self._base.tokenizer()

    def names(self) -> list[str]:
        return self._base.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(name)

    def dtype(self, name: str) -> str:
        return self._base.dtype(name)

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        return self._base.read(name, rows, columns)

    def quantised(self, name: str) -> QuantisedTensor | None:
        return self._base.quantised(name)
