"""Generations that take turns, so that what else the machine does meanwhile disturbs each of them as much."""

import math
from collections.abc import Iterable, Sequence

from server.runners import Step

TURN_S = 0.25
"""Seconds of a turn. Steps of one engine in a row find in the caches what they would find alone."""


def in_turns(generations: Sequence[Iterable[Step]], turn_s: float) -> list[list[Step]]:
    """All steps of each generation; the times of a step are of its own generation alone.

    Whoever has drawn the least is next, for as long as a turn. So all begin and end at about the same time, however
    unequal their steps are. `turn_s` is infinite where an engine's steps go on while another one has its turn.
    """
    waiting = dict(enumerate(map(iter, generations)))
    steps: list[list[Step]] = [[] for _ in waiting]
    num_drawn = [0] * len(steps)
    while waiting:
        number = min(waiting, key=num_drawn.__getitem__)
        if not _take_turn(waiting[number], turn_s, steps[number]):
            del waiting[number]
        num_drawn[number] = sum(len(ids) for step in steps[number] for ids in step.drawn.values())
    return steps


def _take_turn(generation: Iterable[Step], turn_s: float, steps: list[Step]) -> bool:
    """Adds the steps of one turn. False: the generation has ended."""
    end_s = (steps[-1].end_s if steps else 0.0) + turn_s
    for step in generation:
        steps.append(step)
        if step.end_s >= end_s:
            return True
    return False


def turn_s(pipeline_depth: int) -> float:
    return math.inf if pipeline_depth else TURN_S
