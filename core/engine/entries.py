"""KV entries that travel between engines: plain data in the canonical form, with where they come from.

Owns their form as bytes, a safetensors file. Refuses bytes that are none; whether entries fit an engine is decided
there (`core.engine.exchange`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from core.errors import RequestError

_CARD = "core-kv-1"  # the name that the card has in a file: another form would have another


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that entries come from.

    weights      tells the model's weights from others (`core.model.digest`)
    shape        what entries depend on beside weights, by name: sizes of the model, rope, KV groups
    page_tokens  tokens in a page
    dtype        of the activations, and of canonical entries
    device       name of its device
    kv_formats   how that kept them, per KV group (`KVLayout.format_id`): what they lost by it, they have lost
    spec         identity of its cache (`core.kv.prefix.spec_digest`), in hexadecimal digits
    """

    weights: str
    shape: dict[str, str]
    page_tokens: int
    dtype: str
    device: str
    kv_formats: list[str]
    spec: str

    @property
    def provenance(self) -> str:
        """The name that entries from there go by."""
        return f"{self.device}/{'+'.join(self.kv_formats)}/{self.spec[:16]}"


class _Card(msgspec.Struct, frozen=True):
    token_ids: list[int]
    origin: Origin
    following: list[int] = []


@dataclass(frozen=True, eq=False)
class KVEntries:
    """What layers keep of `token_ids`, a prefix of whole pages.

    groups      per KV group, [layers, 2, N, page, H, D] on the host: keys, then values, of its last N pages (all of
                them, or those that a token after them sees)
    following   ids after these that entries rest on, too: those of draft layers look ahead
    """

    token_ids: list[int]
    origin: Origin
    groups: list[torch.Tensor]
    following: list[int] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        card = msgspec.json.encode(_Card(self.token_ids, self.origin, self.following)).decode()
        raw: bytes = save({str(g): group.contiguous() for g, group in enumerate(self.groups)}, {_CARD: card})
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes) -> KVEntries:
        """What `to_bytes` made. Raises: RequestError for anything else."""
        try:
            tensors = load(raw)
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            card = msgspec.json.decode(header["__metadata__"][_CARD], type=_Card)
            groups = [tensors[str(g)] for g in range(len(tensors))]
        except (SafetensorError, KeyError, msgspec.DecodeError) as error:
            raise RequestError(
                f"these bytes are no KV entries ({error}): give what KVEntries.to_bytes made", "entries"
            ) from error
        return cls(card.token_ids, card.origin, groups, card.following)
