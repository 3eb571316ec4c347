"""Loads draft heads that `core train-mtp` wrote, for the model that they were trained for and no other.

`load_heads` gives a `ModelSource` that has the tensors of the model, those of its draft layers, and the rows of the
model's head for the draft vocabulary. A `Builder` on which the model and then `DraftHeads` are built is loaded from it
by core's `Loader` as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.model.digest import digest_of
from core.model.mtp import DRAFT_HEAD
from core.model.source import ModelSource, QuantisedTensor
from core.speculate.card import CARD, WEIGHTS, Base, Card, read_card, sha256_of
from core.speculate.extended import Extended

if TYPE_CHECKING:
    import torch

DRAFT_IDS = "draft_ids"
"""Tensor of the weights' file, int32: the id of each token of the draft vocabulary, ascending."""


@dataclass(frozen=True)
class Heads:
    """Draft heads, ready to be built and loaded.

    source      what core's `Loader` reads the model and its heads from
    draft_ids   int32 [draft_vocab] on the host: the id of each token of the draft vocabulary
    """

    card: Card
    source: ModelSource
    draft_ids: torch.Tensor


def load_heads(path: Path, base: ModelSource) -> Heads:
    """Open the heads in folder `path` for the model `base`.

    Raises: ConfigError when something is missing or damaged, or the heads are of another model.
    """
    card = read_card(path)
    tensors = _read_weights(path, card)
    _check_base(path, card.base, base)
    ids = tensors.pop(DRAFT_IDS, None)
    if ids is None:
        raise ConfigError(f"{path / WEIGHTS} has no {DRAFT_IDS}: train the heads again")
    _check_ids(path, card, ids)
    _check_shapes(path, card, base, tensors)
    return Heads(card, WithHeads(base, tensors, ids, card.head), ids)


def _read_weights(path: Path, card: Card) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    weights = path / WEIGHTS
    if not weights.is_file():
        raise ConfigError(f"{path} has no {WEIGHTS}: copy the whole folder")
    if (found := sha256_of(weights)) != card.weights_sha256:
        raise ConfigError(
            f"{weights} has SHA-256 {found[:12]}, and {CARD} is of {card.weights_sha256[:12]}: copy both files again"
        )
    return load_file(weights)


def _check_base(path: Path, wanted: Base, base: ModelSource) -> None:
    if (found := digest_of(base)) != wanted.digest:
        raise ConfigError(
            f"the heads in {path} were trained for {wanted.name} (digest {wanted.digest[:12]}), and {base.name} has "
            f"digest {found[:12]}: serve that model, in the same files, or train heads for this one"
        )


def _check_ids(path: Path, card: Card, ids: torch.Tensor) -> None:
    import torch

    whole = ids.dtype == torch.int32 and ids.shape == (card.draft_vocab,)
    known = whole and bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0 and int(ids[-1]) < card.base.vocab_size
    if not known:
        raise ConfigError(
            f"{DRAFT_IDS} in {path / WEIGHTS} are not {card.draft_vocab} ascending ids below {card.base.vocab_size}: "
            "train the heads again"
        )


def _check_shapes(path: Path, card: Card, base: ModelSource, tensors: Mapping[str, torch.Tensor]) -> None:
    """Each block is as the model's layer `block_like`; what stands around it follows from the hidden size."""
    size, known = card.base.hidden_size, set(base.names())
    own: dict[str, tuple[int, ...]] = {
        "enorm.weight": (size,),
        "hnorm.weight": (size,),
        "shared_head.norm.weight": (size,),
    }
    own["eh_proj.weight"] = (size, 2 * size)
    for name, tensor in tensors.items():
        layers, _, rest = name.partition("layers.")
        part = rest.partition(".")[2]
        twin = f"{layers}layers.{card.block_like}.{part}"
        wanted = own.get(part) or (base.shape(twin) if twin in known else None)
        if wanted != tuple(tensor.shape):
            raise ConfigError(
                f"tensor {name} in {path / WEIGHTS} has shape {tuple(tensor.shape)}, and {base.name} asks for "
                f"{wanted or 'no such tensor'}: train the heads again"
            )


class WithHeads(Extended):
    """`base` with the tensors of draft layers, and the head's rows `ids` as `DRAFT_HEAD`."""

    def __init__(self, base: ModelSource, tensors: Mapping[str, torch.Tensor], ids: torch.Tensor, head: str) -> None:
        super().__init__(base)
        self._tensors, self._ids, self._head = tensors, ids, head

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + sum(t.numel() * t.element_size() for t in self._tensors.values())

    def names(self) -> list[str]:
        return [*super().names(), *self._tensors, DRAFT_HEAD]

    def shape(self, name: str) -> tuple[int, ...]:
        if name == DRAFT_HEAD:
            return (len(self._ids), *super().shape(self._head)[1:])
        return tuple(self._tensors[name].shape) if name in self._tensors else super().shape(name)

    def dtype(self, name: str) -> str:
        if name == DRAFT_HEAD:
            return str(self._rows(slice(0, 1)).dtype).removeprefix("torch.")
        found = self._tensors.get(name)
        return super().dtype(name) if found is None else str(found.dtype).removeprefix("torch.")

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """As `ModelSource.read`."""
        if name == DRAFT_HEAD:
            part = self._rows(rows or slice(None))
        elif name in self._tensors:
            part = self._tensors[name][rows or slice(None)]
        else:
            return super().read(name, rows, columns)
        return part if columns is None else part[:, columns]

    def _rows(self, part: slice) -> torch.Tensor:
        """Rows of the head for some of the draft vocabulary: what lies between them is read, too, and dropped."""
        ids = self._ids[part].long()
        first = int(ids[0])
        return super().read(self._head, slice(first, int(ids[-1]) + 1))[ids - first]

    def quantised(self, name: str) -> QuantisedTensor | None:
        """As `ModelSource.quantised`: draft layers are not, nor are the head's rows."""
        return None if name == DRAFT_HEAD or name in self._tensors else super().quantised(name)
