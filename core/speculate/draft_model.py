"""A draft model: a smaller model of the same vocabulary, whose guesses the model checks.

Owns how the tensors of both stand beside each other for one `Loader`. Refuses a draft model whose ids mean other
tokens, or that writes no text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.model.source import ModelSource, QuantisedTensor
from core.speculate.extended import Extended

if TYPE_CHECKING:
    import torch

    from core.model.spec import ModelConfig

PREFIX = "draft:"
"""Names of the draft model's parameters and tensors begin with it; no checkpoint has such names."""


class WithDraftModel(Extended):
    """`base` with all tensors of `draft`, whose names begin with `PREFIX`."""

    def __init__(self, base: ModelSource, draft: ModelSource) -> None:
        super().__init__(base)
        self._draft = draft

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + self._draft.size_bytes

    def names(self) -> list[str]:
        return [*super().names(), *(PREFIX + name for name in self._draft.names())]

    def shape(self, name: str) -> tuple[int, ...]:
        source, name = self._of(name)
        return source.shape(name)

    def dtype(self, name: str) -> str:
        source, name = self._of(name)
        return source.dtype(name)

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """As `ModelSource.read`."""
        source, name = self._of(name)
        return source.read(name, rows, columns)

    def quantised(self, name: str) -> QuantisedTensor | None:
        """As `ModelSource.quantised`."""
        source, name = self._of(name)
        return source.quantised(name)

    def _of(self, name: str) -> tuple[ModelSource, str]:
        """Whose tensor it is, and its name there."""
        return (self._draft, name.removeprefix(PREFIX)) if name.startswith(PREFIX) else (self._base, name)


def check_writes(draft: ModelSource) -> None:
    """Raises: ConfigError for a model without a head."""
    if draft.pooling and draft.pooling.headless:
        raise ConfigError(f"draft model {draft.name} gives embeddings alone: give one that writes text")


def check_vocabulary(base: ModelSource, config: ModelConfig, draft: ModelSource, draft_config: ModelConfig) -> None:
    """Raises: ConfigError where an id means another token to the draft model than to the model.

    Ids that a tokenizer has no token for, as those that fill a vocabulary up, mean nothing to it.
    """
    remedy = "give a draft model of the same family of models, with the same tokenizer"
    if draft_config.vocab_size != config.vocab_size:
        raise ConfigError(
            f"draft model {draft.name} has a vocabulary of {draft_config.vocab_size}, and {base.name} one of "
            f"{config.vocab_size}: {remedy}"
        )
    ours, theirs = base.tokenizer(), draft.tokenizer()
    for token_id in range(min(ours.vocab_size, theirs.vocab_size)):
        token, other = ours.id_to_token(token_id), theirs.id_to_token(token_id)
        if None not in (token, other) and token != other:
            raise ConfigError(
                f"draft model {draft.name} has {other!r} as token {token_id}, and {base.name} has {token!r}: {remedy}"
            )
