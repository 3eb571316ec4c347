"""Tells models from each other by their weights, fine-tuned ones too, without reading them whole."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.model.source import ModelSource

_PEEK_BYTES = 4096


def digest_of(source: ModelSource) -> str:
    """A hash over name, shape, type and first 4 KiB of every tensor, as they are stored or dequantised."""
    total = hashlib.sha256()
    for name in sorted(source.names()):
        shape = source.shape(name)
        width = shape[-1] if len(shape) > 1 else 1
        first = source.read(name, slice(0, max(1, _PEEK_BYTES // (2 * width))))
        content = first.reshape(-1)[: _PEEK_BYTES // 2].float().numpy().tobytes()
        total.update(f"{name} {shape} {source.dtype(name)}\n".encode() + content)
    return total.hexdigest()
