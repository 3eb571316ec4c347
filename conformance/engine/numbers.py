"""Families "kl" and "greedy": how far the device is from the reference (check M)."""

from __future__ import annotations

import torch

from conformance.case import Finding
from conformance.engine.measure import distance, flips, near_reference
from conformance.engine.rig import Rig, in_chunks
from conformance.engine.served import serve

NUM_DECODED = 24


def kl(rig: Rig) -> list[Finding]:
    """Teacher-forced, over the whole vocabulary.

    way   prompt: after each token but the last, in chunks, as prompts with log-probabilities are
          decode: after some of the last ones, one token of each text at a time, compiled where the device compiles
    """
    forced = rig.forced()
    added = [forced.add(row) for row in rig.ids]
    if rig.case["way"] == "prompt":
        first, logits = 0, in_chunks(forced, added, 0)
    else:
        first = rig.length - 1 - NUM_DECODED
        for text in added:
            forced.fill(text, first)
        logits = forced.together(added)
    reference = rig.reference(rig.ids, first)
    noise = rig.noise(rig.ids, first, reference)
    found_RV, reference_RV = logits.flatten(0, 1), reference.flatten(0, 1)
    found = distance(found_RV, reference_RV, rig.ids[:, first + 1 :].flatten())
    return [*near_reference(found, noise), flips(found_RV.argmax(-1), reference_RV, noise)]


def greedy(rig: Rig) -> list[Finding]:
    """Ids drawn through the whole engine, all texts together; the reference reads along."""
    served = serve(rig.config(), [rig.prompts], rig.drawn, logprobs=False)
    drawn = torch.tensor([answer.ids for answer in served.answers])
    whole = torch.cat([rig.ids, drawn], -1)
    first = rig.length - 1
    reference = rig.reference(whole, first)
    noise = rig.noise(whole, first, reference)
    return [flips(drawn.flatten(), reference.flatten(0, 1), noise)]
