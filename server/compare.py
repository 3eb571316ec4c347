"""Runs a comparison: opens what is measured, measures, and says what it was."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from core.config import EngineConfig
from core.model.convert import convert
from server.measure import Case, Result, Runner, measure
from server.models import open_model
from server.runners import CoreRunner, TransformersRunner
from server.show import progress


def compare(
    config: EngineConfig, wanted: Sequence[Case], repetitions: int, with_transformers: bool
) -> tuple[list[list[Result]], list[str]]:
    """Results of each case, and the versions of what was measured. Both read the same folder of weights."""
    with ExitStack() as opened:
        if with_transformers:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "model"
            convert(open_model(config.model), folder, "bfloat16" if config.dtype == "auto" else config.dtype)
            config = msgspec.structs.replace(config, model=str(folder))
        core = opened.enter_context(CoreRunner(config))
        runners: list[Runner] = [core]
        if with_transformers:
            runners.append(TransformersRunner(folder, core.dtype))
        tick = opened.enter_context(progress("Measuring"))
        results = list(measure(runners, wanted, repetitions, core.llm.tokenizer.vocab_size, tick))
        return results, [runner.versions for runner in runners]
