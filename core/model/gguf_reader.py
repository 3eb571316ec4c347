"""Opens a GGUF file fast: `gguf.GGUFReader`, with array fields read in bulk.

The library makes several objects for every element of an array, which takes seconds for a vocabulary. Here an
array is one span of bytes that is decoded when asked for. Refuses files that are cut short, of another byte
order, or one part of several.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

from core.errors import ConfigError

_STRING_LENGTH = struct.Struct("<Q")
_ARRAY_HEADER_BYTES = 12


class _BulkReader(GGUFReader):
    """GGUFReader whose arrays of strings and numbers are one part each: their bytes, without the header."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        if self.byte_order != "I":
            raise ConfigError("the GGUF file was written for the other byte order: use one for this machine")
        item_type = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + _ARRAY_HEADER_BYTES
        if item_type == GGUFValueType.STRING:
            num_bytes = self._strings_bytes(start, count)
        elif item_type in self.gguf_scalar_to_np:
            num_bytes = count * np.dtype(self.gguf_scalar_to_np[item_type]).itemsize
        else:
            raise ValueError(f"an array of {item_type.name} is not supported")
        if start + num_bytes > len(self.data):
            raise ValueError("an array ends beyond the file")
        return _ARRAY_HEADER_BYTES + num_bytes, [self.data[start : start + num_bytes]], [0], [raw_type, item_type]

    def _strings_bytes(self, start: int, count: int) -> int:
        view, offset = self.data.data, start
        unpack_from = _STRING_LENGTH.unpack_from
        for _ in range(count):
            offset += 8 + unpack_from(view, offset)[0]
        return offset - start


class GgufFile:
    """Metadata and tensors of one GGUF file, memory-mapped.

    tensors   name -> the library's record of it: type and sizes; for its data see `stored`
    """

    def __init__(self, path: Path) -> None:
        try:
            self._reader = _BulkReader(path)
        except (ValueError, IndexError, KeyError, OSError, OverflowError, struct.error) as error:
            raise ConfigError(
                f"{path} cannot be read as a GGUF file ({error}): it is cut short or damaged; fetch it again"
            ) from error
        if self.get("split.count", 1) > 1:
            raise ConfigError(
                f"{path} is one of {self.get('split.count')} parts: join them with llama-gguf-split --merge"
            )
        self.path = path
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in self._reader.tensors}

    def stored(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor, outer dimension first: a view of the mapped file.

        Touched pages of a mapped file count as this process's memory, so those of earlier calls are given back. Views
        stay valid: the system reads their pages again, most likely from its cache.
        """
        mapped: Any = self._reader.data.base
        mapped.madvise(mmap.MADV_DONTNEED)
        data: np.ndarray = self.tensors[name].data
        return data

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key: a number, bool, string, or a list of these."""
        field = self._reader.fields.get(key)
        if field is None:
            return default
        if field.types[0] != GGUFValueType.ARRAY:
            return field.contents()
        data, item_type = field.parts[field.data[0]], field.types[1]
        if item_type == GGUFValueType.STRING:
            return _split_strings(data.tobytes())
        return data.view(self._reader.gguf_scalar_to_np[item_type]).tolist()

    def require(self, key: str) -> Any:
        """As `get`. Raises: ConfigError when the key is absent."""
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.path} has no metadata key {key!r}: convert the model to GGUF again")
        return value


def _split_strings(data: bytes) -> list[str]:
    out, offset = [], 0
    unpack_from = _STRING_LENGTH.unpack_from
    while offset < len(data):
        start = offset + 8
        offset = start + unpack_from(data, offset)[0]
        out.append(data[start:offset].decode("utf-8", "replace"))
    return out
