"""What a measurement of drafts says: as tables on the screen, as Markdown, for programs, and as a picture."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from core import ConfigError
from server.draft_speed.gain import Gain, Run
from server.show import markdown, table

RESULTS, TABLES, PICTURE = "drafts.json", "drafts.md", "drafts.svg"
NEAR_TIE = 0.5
"""Nats. Rounding may turn what is closer than that, and nothing may turn what is not."""
_CASE = ["prompts", "batch", "drafter"]
_MEASURED = [*_CASE, "without", "with", "gain", "answers differ"]
_MODEL = [*_CASE, "drafts a draw", "tokens a step", "ms without", "ms with", "draft layers", "gain implied", "measured"]


class Report(msgspec.Struct):
    """What `core bench spec` measured with one model."""

    model: str
    gains: list[Gain]

    def add(self, gain: Gain) -> None:
        """A case that is there already is measured anew, and stays in its place."""
        places = [place for place, known in enumerate(self.gains) if known.case == gain.case]
        at = slice(places[0], places[0] + 1) if places else slice(len(self.gains), None)
        self.gains[at] = [gain]

    def as_json(self) -> dict[str, Any]:
        """For programs, and for `read`."""
        return {"model": self.model, "gains": [msgspec.to_builtins(gain) | _derived(gain) for gain in self.gains]}

    def cells(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Of each table: title, columns and rows."""
        places = max(gain.max_drafts for gain in self.gains)
        return [
            ("Tokens per second: median (spread)", _MEASURED, [_case(g) + _measured(g) for g in self.gains]),
            ("Why: a step of all sequences", _MODEL, [_case(g) + _explained(g) for g in self.gains]),
            (
                "Drafts that are right, by place, of those after right ones",
                [*_CASE, *(str(place + 1) for place in range(places))],
                [_case(g) + _accepted(g, places) for g in self.gains],
            ),
        ]

    def tables(self) -> list[Table]:
        return [table(*each) for each in self.cells()]

    def notes(self) -> list[str]:
        """What the tables rest on, and answers that were others with drafts."""
        margins = [margin for gain in self.gains for margin in gain.margins]
        num_answers = sum(gain.num_answers for gain in self.gains)
        lengths = sorted({gain.output_len for gain in self.gains})
        lines = [
            f"{self.model}: as many drafts are computed as pay, or all that are proposed where it says so; answers of "
            f"{' and '.join(map(str, lengths))} tokens",
            *dict.fromkeys(gain.versions for gain in self.gains),
            f"{len(margins)} of {num_answers} answers differ between the two engines",
        ]
        if margins:
            lines[-1] += f": the first other id was up to {max(map(abs, margins)):.2f} nats off"
        if num := sum(abs(margin) > NEAR_TIE for margin in margins):
            lines.append(f"{num} differ by more than rounding: a defect of core or of the device's kernels, report it")
        return lines

    def markdown(self) -> str:
        made = [f"{title}.\n\n{markdown(columns, rows)}" for title, columns, rows in self.cells()]
        notes = "\n".join(f"- {line}" for line in self.notes())
        return "\n\n".join([*made, notes]) + "\n"

    def keep(self, folder: Path) -> None:
        """Results alone."""
        (folder / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(self.as_json())) + b"\n")

    def write(self, folder: Path) -> None:
        """Results, tables and picture."""
        from server.draft_speed.picture import draw

        self.keep(folder)
        (folder / TABLES).write_text(self.markdown())
        (folder / PICTURE).write_text(draw(self.gains))


def begin(model: str, folder: Path | None) -> Report:
    """What the folder has of this model, so that more is added to it.

    Raises: ConfigError where it is of another model, or unreadable.
    """
    path = folder / RESULTS if folder else None
    if path is None or not path.is_file():
        return Report(model, [])
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} has no results of core bench spec ({error}): name another folder") from error
    if found.model != model:
        raise ConfigError(f"{path} is of {found.model}, and this is {model}: name another folder")
    return found


def _derived(gain: Gain) -> dict[str, Any]:
    return {
        "gains": gain.ratios,
        "gain": gain.measured,
        "implied_gain": gain.implied,
        "tokens_per_step": gain.tokens_per_step,
        "drafts_per_draw": gain.drafts_per_draw,
        "step_without_s": gain.step_without_s,
        "step_drafted_s": gain.step_drafted_s,
        "foretelling_s": gain.foretelling_s,
        "acceptance": gain.acceptance,
        "num_answers": gain.num_answers,
        "num_differing": len(gain.margins),
    }


def _case(gain: Gain) -> list[str]:
    return [str(part) for part in gain.case]


def _measured(gain: Gain) -> list[str]:
    return [
        _spread(_rates(gain.without), ",.1f"),
        _spread(_rates(gain.drafted), ",.1f"),
        _spread(gain.ratios, ".2f"),
        f"{len(gain.margins)} of {gain.num_answers}",
    ]


def _explained(gain: Gain) -> list[str]:
    return [
        f"{gain.drafts_per_draw:.2f}",
        f"{gain.tokens_per_step:.2f}",
        f"{1e3 * gain.step_without_s:.1f}",
        f"{1e3 * gain.step_drafted_s:.1f}",
        f"{1e3 * gain.foretelling_s:.1f}" if gain.foretelling_s else "-",
        f"{gain.implied:.2f}",
        f"{gain.measured:.2f}",
    ]


def _accepted(gain: Gain, places: int) -> list[str]:
    both = zip(gain.acceptance, gain.num_reached_at, strict=True)
    cells = ["-" if rate is None else f"{rate:.0%} of {num:,}" for rate, num in both]
    return cells + [""] * (places - len(cells))


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run.tokens_per_s for run in runs]


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
