"""Losses and agreement beside plain loops over positions, on the float64 twin of the layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.engine.models import find_model
from core.plugin import loader
from core.plugin.opened import open_device
from core.speculate.student import Batch, Student
from tests.conftest import write_llama
from tests.core.model.mtp_twin import Twin
from tests.models.tiny import read_raw, write_family

ROW, LENS, PROMPTS, NUM_LAYERS = 24, (24, 11), (5, 1), 2
DRAFT_IDS = torch.arange(3, 384, 4, dtype=torch.int32)


class Scene:
    """A student with random heads, a batch, and the same in float64."""

    def __init__(self, folder: Path, gemma: bool) -> None:
        source, spec = find_model(str(folder))
        opened = open_device(loader.choose(loader.discover(), "cpu"))
        self.student = Student(
            source, spec, opened.device, opened.where,
            dtype="float32", num_layers=NUM_LAYERS, draft_ids=DRAFT_IDS, row_tokens=ROW, seed=0,
        )  # fmt: skip
        torch.manual_seed(3)
        with torch.no_grad():
            for tensor in self.student.tensors.values():
                tensor.add_(torch.randn_like(tensor), alpha=0.1)
        base = {name: source.read(name) for name in source.names()}
        self.twin = Twin({**base, **self.student.tensors}, read_raw(folder), gemma)
        hidden = torch.randn(2, ROW, 64)
        self.logits = self.twin.logits(hidden.double(), torch.arange(384))
        ids = torch.randint(0, 384, (2, ROW))
        ids[1, LENS[1] :] = 0
        self.batch = Batch(
            ids, torch.tensor(LENS), torch.tensor(PROMPTS), hidden,
            self.logits.logsumexp(-1).float(), self.logits.argmax(-1),
        )  # fmt: skip

    def drafts(self) -> list[list[torch.Tensor]]:
        """[row][layer]: logits of each position over the draft vocabulary."""
        found = []
        for row, length in enumerate(LENS):
            hidden = self.twin.run(self.batch.ids[row, :length].tolist(), self.batch.hidden[row, :length], NUM_LAYERS)
            found.append([self.twin.logits(h, DRAFT_IDS) for h in hidden])
        return found


@pytest.fixture(params=["llama", "gemma3"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    gemma = request.param == "gemma3"
    return Scene(write_family(tmp_path / "tiny", "gemma3") if gemma else write_llama(tmp_path / "tiny"), gemma)


def test_losses_are_the_divergence_over_the_draft_vocabulary(scene: Scene) -> None:
    with torch.no_grad():
        loss = torch.zeros(NUM_LAYERS, dtype=torch.float64)
        weight = torch.zeros(NUM_LAYERS, dtype=torch.float64)
        for row, layers in enumerate(scene.drafts()):
            for k, logits in enumerate(layers, 1):
                for i in range(LENS[row] - k):
                    whole = scene.logits[row, i + k].softmax(-1)
                    part = whole[DRAFT_IDS.long()]
                    mass = part.sum()
                    told, learned = part / mass, logits[i].softmax(-1)
                    loss[k - 1] += mass * (told * (told / learned).log()).sum()
                    weight[k - 1] += mass
        found = scene.student.losses(scene.batch)
    torch.testing.assert_close(found.loss.double(), loss, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.weight.double(), weight, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_the_loss(scene: Scene) -> None:
    """Along a random direction the loss changes as autograd says, in every tensor of every layer."""

    def mean() -> torch.Tensor:
        found = scene.student.losses(scene.batch)
        return (found.loss / found.weight).mean()

    mean().backward()
    for name, tensor in scene.student.tensors.items():
        torch.manual_seed(4)
        way = torch.randn_like(tensor)
        assert tensor.grad is not None, name
        slope, size = float((tensor.grad * way).sum()), 1e-2 / float(way.norm())
        with torch.no_grad():
            tensor.add_(way, alpha=size)
            above = float(mean())
            tensor.add_(way, alpha=-2 * size)
            below = float(mean())
            tensor.add_(way, alpha=size)
        assert (above - below) / (2 * size) == pytest.approx(slope, rel=0.05, abs=2e-3), name


def test_agreement_counts_what_decoding_would_accept(scene: Scene) -> None:
    """Positions from the last of the prompt on; a layer counts where those before it agree."""
    places, agree, known = 0, [0] * NUM_LAYERS, 0
    drafts = scene.drafts()
    for row, layers in enumerate(drafts):
        for i in range(PROMPTS[row] - 1, LENS[row] - NUM_LAYERS):
            # Where drafts are random they hardly agree: let the model agree with half of them.
            for k in range(1, NUM_LAYERS + 1):
                if (i + k) % 3:
                    scene.batch.best[row, i + k] = DRAFT_IDS[layers[k - 1][i].argmax()]
    for row, layers in enumerate(drafts):
        best = scene.batch.best[row].tolist()
        for i in range(PROMPTS[row] - 1, LENS[row] - NUM_LAYERS):
            places += 1
            known += best[i + 1] in DRAFT_IDS.tolist()
            for k in range(1, NUM_LAYERS + 1):
                if int(DRAFT_IDS[layers[k - 1][i].argmax()]) != best[i + k]:
                    break
                agree[k - 1] += 1
    found = scene.student.agreement(scene.batch)
    assert (found.num_positions, found.num_agree, found.num_known) == (places, agree, known)
    assert agree[0] > agree[1] > 0
