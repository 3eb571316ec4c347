"""Trains draft heads for a frozen model, and writes them with a card of what came of it.

Owns the steps and what makes a run repeatable: all it does follows from the recipe, so one that is killed and resumed
ends with the same bits on the same machine, at the same number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save

from core.kernels.dtypes import TORCH_DTYPES
from core.model.decoder import head_source
from core.model.mtp import block_like
from core.speculate.card import WEIGHTS, Acceptance, Base, Card, sha256_of, write_card, write_whole
from core.speculate.checkpoint import History, Judged, load_checkpoint, save_checkpoint
from core.speculate.heads import DRAFT_IDS
from core.speculate.material import Material, Tell, gather
from core.speculate.recipe import CHECKPOINT, Recipe, begin
from core.speculate.student import Agreement, Batch, Student

SAVE_EVERY = 20
NUM_JUDGED = 10  # times in a run that the heads are judged
LOSS_OVER = 50  # last steps that the loss of a card is the mean of
MAX_NORM, TINY = 1.0, 1e-9
HISTORY = "history.json"


def train(recipe: Recipe, folder: Path, *, resume: bool, tell: Tell) -> Card:
    """Train heads by the recipe and write them to `folder`. Returns their card.

    Raises: ConfigError when the recipe, the folder, the model or the device does not allow it.
    """
    work = begin(folder, recipe, resume=resume)
    material = gather(recipe, work, tell)
    with _repeatable():
        training = Training(recipe, material)
        training.run(work / CHECKPOINT, tell)
        acceptance = training.acceptance()
    card = training.card(acceptance, _write_weights(folder, training.student, material.draft_ids))
    write_whole(folder / HISTORY, msgspec.json.encode(training.history))
    write_card(folder, card)
    return card


def read_history(folder: Path) -> History:
    """How the losses and the acceptance of finished heads came about."""
    return msgspec.json.decode((folder / HISTORY).read_bytes(), type=History)


@contextmanager
def _repeatable() -> Iterator[None]:
    """Only operations that give the same bits again, where the device has them."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _write_weights(folder: Path, student: Student, draft_ids: torch.Tensor) -> str:
    """Weights in the dtype of the model. Returns the file's hash."""
    dtype = TORCH_DTYPES[student.dtype]
    tensors = {name: t.detach().to("cpu", dtype).contiguous() for name, t in student.tensors.items()}
    write_whole(folder / WEIGHTS, save({**tensors, DRAFT_IDS: draft_ids}, metadata={"format": "pt"}))
    return sha256_of(folder / WEIGHTS)


class Training:
    """Heads on their way, step by step."""

    def __init__(self, recipe: Recipe, material: Material) -> None:
        a = material.assembly
        self._recipe, self._material, self._where = recipe, material, a.where
        self._dtype = TORCH_DTYPES[a.plan.dtype]
        self.student = Student(
            a.source,
            material.spec,
            a.device,
            a.where,
            dtype=a.plan.dtype,
            num_layers=recipe.num_layers,
            draft_ids=material.draft_ids,
            row_tokens=recipe.row_tokens,
            seed=recipe.seed,
        )
        parameters = list(self.student.tensors.values())
        self._optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
        self.history = History()

    def run(self, checkpoint: Path, tell: Tell) -> None:
        """All steps that are left after those of the checkpoint, if there is one."""
        steps, key = self._recipe.steps, self._material.key
        if checkpoint.exists():
            self.history = load_checkpoint(checkpoint, self.student.tensors, self._optimizer, key)
        while (step := len(self.history.losses)) < steps:
            self.history.losses.append(self._step(step))
            done = step + 1
            if done % -(-steps // NUM_JUDGED) == 0 or done == steps:
                self.history.judged.append(Judged(done, self._agreement().per_position))
            if done % SAVE_EVERY == 0 or done == steps:
                save_checkpoint(checkpoint, self.student.tensors, self._optimizer, self.history, key)
            tell("training, loss " + " ".join(f"{loss:.3f}" for loss in self.history.losses[-1]), done, steps)

    def _step(self, step: int) -> list[float]:
        """Learn from the rows of this step. Returns the loss of each layer."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate(step, self._recipe)
        rows = self._rows(step)
        loss, weight = self.student.losses(self._material.learn.batch(rows, self._where, self._dtype))
        each = loss / weight.clamp(min=TINY)  # a batch of texts that are too short for a layer teaches it nothing
        self._optimizer.zero_grad()
        each.mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.tensors.values(), MAX_NORM)
        self._optimizer.step()
        return [float(x) for x in each.detach()]

    def _rows(self, step: int) -> torch.Tensor:
        """Every text once, in an order of each pass's own; what is left over of a pass is not used."""
        batch, count = self._recipe.batch, len(self._material.learn.lens_R)
        passes, place = divmod(step, count // batch)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self._recipe.seed * 2**20 + passes))
        return order[place * batch : (place + 1) * batch]

    def acceptance(self) -> Acceptance:
        """Of the heads as they are now, on all held-out texts."""
        found = self._agreement()
        loss, weight = (torch.zeros(self._recipe.num_layers, dtype=torch.float64) for _ in range(2))
        for batch in self._held_out():
            with torch.no_grad():
                lost = self.student.losses(batch)
            loss += lost.loss.cpu()
            weight += lost.weight.cpu()
        return Acceptance(
            per_position=found.per_position,
            tokens_per_step=1 + sum(found.num_agree) / max(1, found.num_positions),
            num_positions=found.num_positions,
            loss=(loss / weight.clamp(min=TINY)).tolist(),
            in_vocabulary=found.num_known / max(1, found.num_positions),
        )

    def _agreement(self) -> Agreement:
        """On all held-out texts."""
        found = [self.student.agreement(batch) for batch in self._held_out()]
        agree = [sum(layer) for layer in zip(*(one.num_agree for one in found), strict=True)]
        return Agreement(sum(one.num_positions for one in found), agree, sum(one.num_known for one in found))

    def _held_out(self) -> Iterator[Batch]:
        held_out, size = self._material.held_out, self._recipe.batch
        for first in range(0, len(held_out.lens_R), size):
            rows = torch.arange(first, min(first + size, len(held_out.lens_R)))
            yield held_out.batch(rows, self._where, self._dtype)

    def card(self, acceptance: Acceptance, weights_sha256: str) -> Card:
        """What is to be known of the heads."""
        a, recipe, config = self._material.assembly, self._recipe, self.student.config
        last = self.history.losses[-LOSS_OVER:]
        return Card(
            base=Base(
                name=recipe.model,
                digest=self._material.digest,
                architecture=a.source.config["architectures"][0],
                hidden_size=config.hidden_size,
                vocab_size=config.vocab_size,
            ),
            weights_sha256=weights_sha256,
            num_layers=recipe.num_layers,
            block_like=block_like(config),
            head=head_source(config),
            draft_vocab=len(self._material.draft_ids),
            recipe=msgspec.to_builtins(recipe),
            data=self._material.data,
            made_with={
                "core": version("core"),
                "torch": version("torch"),
                "device": a.facts.name,
                "arch": a.facts.arch,
                "dtype": a.plan.dtype,
                "threads": str(torch.get_num_threads()),
            },
            loss=[sum(layer) / len(layer) for layer in zip(*last, strict=True)],
            acceptance=acceptance,
        )


def rate(step: int, recipe: Recipe) -> float:
    """Of learning, at a step: rises over the first tenth of steps, at most 100, and falls as a cosine to a tenth."""
    rise = min(100, recipe.steps // 10) or 1
    if step < rise:
        return recipe.learning_rate * (step + 1) / rise
    part = (step - rise) / max(1, recipe.steps - rise)
    return recipe.learning_rate * (0.55 + 0.45 * math.cos(math.pi * part))
