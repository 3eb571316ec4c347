"""Families "kl" and "greedy": how far the device is from the reference (check M).

Of "kl" something is kept: KL at every position, and where everyone has the model, logits of the device at positions
drawn by the seed. Whoever has those can judge again without the device.
"""

from __future__ import annotations

import torch

from conformance.case import Finding
from conformance.draw import Draw, case_seed
from conformance.engine.measure import Distance, distance, flips, near_reference, ratio
from conformance.engine.rig import Rig, in_chunks
from conformance.engine.served import serve
from conformance.engine.texts import INDUCTION
from conformance.row_exam import Outputs

NUM_DECODED = 24
NUM_KEPT = 36
"""Positions of a case whose logits are kept, 1 kB each."""

KEPT_KL_PART, KEPT_KL_FLOOR = 0.1, 1e-6
"""Kept KL must be that of the kept logits; references of two machines may differ a little."""


def first_of(rig: Rig) -> int:
    """The token of each text after which logits begin."""
    return 0 if rig.case["way"] == "prompt" else rig.length - 1 - NUM_DECODED


def kl(rig: Rig, seed: bytes) -> tuple[list[Finding], Outputs]:
    """Teacher-forced, over the whole vocabulary.

    way   prompt: after each token but the last, in chunks, as prompts with log-probabilities are
          decode: after some of the last ones, one token of each text at a time, compiled where the device compiles
    """
    forced, first = rig.forced(), first_of(rig)
    added = [forced.add(row) for row in rig.ids]
    if rig.case["way"] == "prompt":
        logits = in_chunks(forced, added, first)
    else:
        for text in added:
            forced.fill(text, first)
        logits = forced.together(added)
    reference = rig.reference(rig.ids, first)
    noise = rig.noise(rig.ids, first, reference)
    found_RV, reference_RV = logits.flatten(0, 1), reference.flatten(0, 1)
    found = distance(found_RV, reference_RV, rig.ids[:, first + 1 :].flatten())
    kept = {"kl": found.kl_R.float(), "noise": noise.kl_R.float()}
    if rig.case["model"] == INDUCTION:
        kept["logits"] = found_RV[kept_rows(seed, len(found_RV))].float()
        kept["kv_error"] = torch.tensor(rig.kv_error, dtype=torch.float64)
    return _judged(found, found_RV, reference_RV, noise), kept


def kept_rows(seed: bytes, num_rows: int) -> torch.Tensor:
    """The rows of logits that are kept, drawn by the seed of the case."""
    return torch.from_numpy(Draw(case_seed(seed, "kept")).permutation(num_rows)[:NUM_KEPT])


def _judged(found: Distance, found_RV: torch.Tensor, reference_RV: torch.Tensor, noise: Distance) -> list[Finding]:
    return [*near_reference(found, noise), flips(found_RV.argmax(-1), reference_RV, noise)]


def rejudge_kl(rig: Rig, seed: bytes, kept: Outputs) -> list[Finding]:
    """The same, of what was kept; needs no device. The noise is that of the same positions."""
    first = first_of(rig)
    whole_RV = rig.reference(rig.ids, first).flatten(0, 1)
    rows = kept_rows(seed, len(whole_RV))
    shapes = {"kl": whole_RV.shape[:1], "noise": whole_RV.shape[:1], "logits": whole_RV[rows].shape, "kv_error": ()}
    if {name: tuple(x.shape) for name, x in kept.items()} != {name: tuple(shape) for name, shape in shapes.items()}:
        return [Finding("M", "what was kept", float("inf"), f"is not {', '.join(shapes)} of the case")]
    reference_RV, found_RV = whole_RV[rows], kept["logits"]
    ours_RV = rig.ours(rig.ids, first, float(kept["kv_error"])).flatten(0, 1)[rows]
    following_R = rig.ids[:, first + 1 :].flatten()[rows]
    found, noise = (distance(x_RV, reference_RV, following_R) for x_RV in (found_RV, ours_RV))
    off_R = (kept["kl"][rows].double() - found.kl_R).abs() / (KEPT_KL_PART * found.kl_R + KEPT_KL_FLOOR)
    same = Finding("M", "kept KL", ratio(off_R.max().item(), 1.0), "beside that of the kept logits")
    return [*_judged(found, found_RV, reference_RV, noise), same]


def greedy(rig: Rig) -> list[Finding]:
    """Ids drawn through the whole engine, all texts together; the reference reads along."""
    served = serve(rig.config(), [rig.prompts], rig.drawn, logprobs=False)
    drawn = torch.tensor([answer.ids for answer in served.answers])
    whole = torch.cat([rig.ids, drawn], -1)
    first = rig.length - 1
    reference = rig.reference(whole, first)
    noise = rig.noise(whole, first, reference)
    return [flips(drawn.flatten(), reference.flatten(0, 1), noise)]
