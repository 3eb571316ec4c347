"""Makes the induction model: `python -m conformance.model.train FOLDER`, a few minutes on two CPU cores.

Seeded: the same release of torch on the same kind of processor gives the same weights. What ships was made so once; its
hashes are in `conformance.model`, and a new run is a new model with new hashes.

How it works. To find a token by its content, two layers must work together. That comes about soon on short cycles only,
so training starts with these and then lengthens them; echoes, which one layer can learn, join later.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from torch import nn

from conformance.model.data import MAX_LENGTH, VOCAB_SIZE, Sequences, below, echo, recall
from conformance.model.llama import Llama, Shape

SEED = 1
TRAINING_KEYS = 1 << 64  # keys of the generator from here on; those of `sequences` are below
NUM_THREADS = 2
RATE, NUM_WARMUP, MAX_NORM = 1e-2, 50, 1.0
UNKNOWN_WEIGHT = 0.05  # of the loss of tokens that nothing foretells
LOG_EVERY = 50

_log = logging.getLogger(__name__)


class Stage(NamedTuple):
    """`num_steps` steps of so many recalls and echoes; a recall's cycle has `periods[0]` to `periods[1]` tokens."""

    num_steps: int
    num_recalls: int
    num_echoes: int
    length: int
    periods: tuple[int, int]


STAGES = (
    Stage(500, 32, 0, 64, (4, 24)),
    Stage(500, 8, 8, 256, (12, 128)),
    Stage(250, 4, 4, MAX_LENGTH, (24, 240)),
)


def train() -> Llama:
    """A model, trained through all stages."""
    torch.manual_seed(SEED)
    torch.set_num_threads(NUM_THREADS)
    model = Llama(Shape(VOCAB_SIZE, MAX_LENGTH))
    _initialise(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    num_steps = sum(stage.num_steps for stage in STAGES)
    for step, batch in enumerate(_batches()):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, num_steps)
        loss = _loss(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        if (step + 1) % LOG_EVERY == 0:
            _log.info("step %d of %d: loss %.4f", step + 1, num_steps, loss.item())
    return model


def _initialise(model: Llama) -> None:
    """Matrices keep the size of what they multiply; those that add to the sum add half of that."""
    for name, tensor in model.named_parameters():
        if tensor.ndim == 2:
            std = 0.3 if "embed" in name else tensor.shape[1] ** -0.5
            nn.init.normal_(tensor, std=std / 2 if name.endswith(("o_proj.weight", "down_proj.weight")) else std)


def _batches() -> Iterator[Sequences]:
    random = np.random.Philox(key=TRAINING_KEYS)
    for stage in STAGES:
        for _ in range(stage.num_steps):
            low, high = stage.periods
            recalls = recall(random, low + below(random, high - low + 1, stage.num_recalls), stage.length)
            echoes = echo(random, stage.num_echoes, stage.length)
            yield Sequences(*(np.concatenate(parts) for parts in zip(recalls, echoes, strict=True)))


def _rate(step: int, num_steps: int) -> float:
    return RATE * min(1.0, (step + 1) / NUM_WARMUP) * (1 + math.cos(math.pi * step / num_steps)) / 2


def _loss(model: Llama, batch: Sequences) -> torch.Tensor:
    """Cross entropy of what follows, mostly of what is known."""
    ids_BL, known_BL = torch.from_numpy(batch.ids_NL), torch.from_numpy(batch.known_NL)
    logits = model(ids_BL[:, :-1]).flatten(0, 1)
    losses = F.cross_entropy(logits, ids_BL[:, 1:].flatten(), reduction="none")
    weights = torch.where(known_BL[:, 1:], 1.0, UNKNOWN_WEIGHT).flatten()
    return (losses * weights).sum() / weights.sum()


def write(model: Llama, folder: Path) -> None:
    """A checkpoint in the layout of Hugging Face, in bfloat16; the tokenizer has one token per byte."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().bfloat16() for name, tensor in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(Shape(VOCAB_SIZE, MAX_LENGTH).config(), indent=2)
    (folder / "config.json").write_text(config + "\n")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the induction model anew.")
    parser.add_argument("folder", type=Path, help="where to write it")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    write(train(), parser.parse_args().folder)


if __name__ == "__main__":
    main()
