"""What a load came to: throughput, percentiles, and goodput, under the names of vLLM's result files."""

import math
from collections.abc import Sequence
from typing import Any

from core.errors import ConfigError
from server.load.target import Outcome

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per token after it, time between chunks, time to the last token. In milliseconds."""

Bounds = dict[str, float]


def parse_bounds(pairs: Sequence[str]) -> Bounds:
    """`["ttft:200", "tpot:50"]`: what a good answer keeps to, in milliseconds. Raises: ConfigError."""
    bounds = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        if name not in ("ttft", "tpot", "e2el") or not value.replace(".", "", 1).isdecimal():
            raise ConfigError(f"--goodput {pair!r}: write ttft:MS, tpot:MS or e2el:MS, for example ttft:200")
        bounds[name] = float(value)
    return bounds


def percentile(values: Sequence[float], percent: float) -> float:
    """Of sorted values, between neighbours in proportion. 0 of none."""
    if not values:
        return 0.0
    place = (len(values) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def is_good(outcome: Outcome, bounds: Bounds) -> bool:
    """Answered, and within every bound. An answer of one token has no time per token to exceed."""
    took = {"ttft": outcome.first_s, "tpot": outcome.per_token_s or 0.0, "e2el": outcome.total_s}
    return outcome.error is None and all(took[name] * 1000 <= limit for name, limit in bounds.items())


def summary(
    outcomes: Sequence[Outcome], duration_s: float, bounds: Bounds, percentiles: Sequence[float]
) -> dict[str, Any]:
    """The numbers, for JSON."""
    answered = [outcome for outcome in outcomes if outcome.error is None]
    num_in, num_out = sum(o.num_in for o in answered), sum(o.num_out for o in answered)
    values = {
        "ttft": [o.first_s for o in answered],
        "tpot": [o.per_token_s for o in answered if o.per_token_s is not None],
        "itl": [gap for o in answered for gap in o.gaps_s],
        "e2el": [o.total_s for o in answered],
    }
    made: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(answered),
        "failed": len(outcomes) - len(answered),
        "total_input_tokens": num_in,
        "total_cached_tokens": sum(o.num_cached for o in answered),
        "total_output_tokens": num_out,
        "request_throughput": len(answered) / duration_s,
        "output_throughput": num_out / duration_s,
        "total_token_throughput": (num_in + num_out) / duration_s,
    }
    if bounds:
        made["request_goodput"] = sum(is_good(o, bounds) for o in outcomes) / duration_s
    for name in METRICS:
        ordered = sorted(value * 1000 for value in values[name])
        made[f"mean_{name}_ms"] = sum(ordered) / max(1, len(ordered))
        made[f"median_{name}_ms"] = percentile(ordered, 50)
        made |= {f"p{percent:g}_{name}_ms": percentile(ordered, percent) for percent in percentiles}
    made["errors"] = _counted([o.error for o in outcomes if o.error is not None])
    return made


def _counted(errors: Sequence[str]) -> dict[str, int]:
    """How often each error came, the commonest first."""
    counts: dict[str, int] = {}
    for error in errors:
        counts[error] = counts.get(error, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1])[:10])
