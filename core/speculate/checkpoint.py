"""The state of a training between two steps, in one safetensors file that is the old one or the new one.

It has the heads' parameters, what AdamW keeps of each, and the history; nothing else changes from step to step. The
rows of a step follow from the seed and the step's number alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save

from core.errors import ConfigError
from core.speculate.card import write_whole

_KEPT = ("step", "exp_avg", "exp_avg_sq")


class Judged(msgspec.Struct, frozen=True):
    """Acceptance after so many steps; see `core.speculate.card.Acceptance`."""

    step: int
    per_position: list[float]


class History(msgspec.Struct):
    """`losses` of each step so far, per layer, and how well the heads foretold now and then."""

    losses: list[list[float]] = []
    judged: list[Judged] = []


def save_checkpoint(
    path: Path, tensors: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, history: History, key: str
) -> None:
    """Write the state after `len(history.losses)` steps. `key`: of what it was trained with."""
    state = optimizer.state_dict()["state"]
    content = {f"{name}|value": tensor.detach() for name, tensor in tensors.items()}
    for i, name in enumerate(tensors):
        content |= {f"{name}|{kept}": state[i][kept] for kept in _KEPT}
    on_host = {name: tensor.cpu().contiguous() for name, tensor in content.items()}
    write_whole(path, save(on_host, metadata={"history": msgspec.json.encode(history).decode(), "key": key}))


def load_checkpoint(
    path: Path, tensors: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, key: str
) -> History:
    """Set tensors and optimizer to the state that was saved. Returns the history.

    Raises: ConfigError when it was trained with something else.
    """
    with safe_open(path, framework="pt") as reader:
        metadata = reader.metadata()
        if metadata["key"] != key:
            raise ConfigError(
                f"{path} is of another model or other texts ({metadata['key']}, and now {key}): bring back what was "
                "changed since, or begin anew in another folder"
            )
        history = msgspec.json.decode(metadata["history"], type=History)
        state = {}
        for i, (name, tensor) in enumerate(tensors.items()):
            with torch.no_grad():
                tensor.copy_(reader.get_tensor(f"{name}|value"))
            state[i] = {kept: reader.get_tensor(f"{name}|{kept}") for kept in _KEPT}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return history
