"""Speed: what counts and what does not, on real kernels that are slow, wrong, or remember."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from conformance.case import Case
from conformance.speed import record as kept
from conformance.speed.cases import Timed, timed
from conformance.speed.measure import record
from conformance.speed.probe import Ceilings
from conformance.speed.record import Measured, SpeedRecord, compare
from conformance.speed.timing import measure
from conformance.target import Host, host_target
from core.errors import ConfigError
from core.kernels.cost import COSTS
from core.kernels.reference import dense
from core.kernels.row import Implementation, Kernel

NORM = Timed(
    Case.of("rms_norm", "normal", dtype="float32", rows=64, k=1024, eps=1e-5), "memory", {"T": 64, "K": 1024, "e": 4}
)


def one(kernel: Kernel) -> Measured:
    made = record(host_target(Implementation("rms_norm", kernel, "made")), "float32", lambda *_: None, [NORM])
    [measured] = made.cases
    assert measured.provider == "made"
    return measured


def slow(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    time.sleep(0.004)
    return dense.rms_norm(x, w, eps=eps)


def test_a_right_kernel_is_timed() -> None:
    measured = one(slow)
    assert measured.trouble == "" or measured.trouble.startswith("the machine was not quiet")
    assert measured.low_s <= measured.seconds <= measured.high_s
    assert 0.004 <= measured.seconds < 0.1
    assert measured.moved_bytes == 2 * 4 * 64 * 1024


def test_a_wrong_kernel_does_not_count() -> None:
    assert one(lambda x, w, *, eps: w * x).trouble.startswith("wrong before it was timed: check A")


def test_one_that_gets_lazy_does_not_count() -> None:
    calls = [0]

    def lazy(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        calls[0] += 1
        return dense.rms_norm(x, w, eps=eps) if calls[0] < 20 else torch.zeros_like(x)

    assert one(lazy).trouble.startswith("wrong after it was timed")


def test_one_that_remembers_does_not_count() -> None:
    last: list[tuple[bytes, torch.Tensor]] = [(b"", torch.empty(0))]

    def remembers(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        content = x.numpy().tobytes()
        if content != last[0][0]:
            time.sleep(0.004)
            last[0] = content, dense.rms_norm(x, w, eps=eps)
        return last[0][1]

    assert "content that was seen before" in one(remembers).trouble


def test_turns_are_fair_and_the_interval_holds_the_median() -> None:
    calls = {"a": 0, "b": 0}

    def count(name: str) -> Any:
        def call() -> None:
            calls[name] += 1
            time.sleep(0.003)

        return call

    times = measure(Host(), [count("a")], count("b"), num_samples=10)
    assert calls == {"a": 12, "b": 12}, "one to warm up, one to size, ten samples each"
    assert times.low <= times.median <= times.high
    assert times.median >= 0.003


def test_the_least_time_is_the_roof() -> None:
    limits = Ceilings(1e9, 1e8, 1e-6)
    assert limits.least_s(1e6, 1e3) == pytest.approx(1e-3 + 1e-6)
    assert limits.least_s(1e3, 1e6) == pytest.approx(1e-2 + 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_timed_case_is_of_an_examination_with_a_cost(dtype: str) -> None:
    from conformance.draw import Draw
    from conformance.kernels import all_exams

    cases = list(timed(dtype))
    assert len({t.case.name for t in cases}) == len(cases)
    for t in cases:
        exam = all_exams()[t.case.row]
        assert min(COSTS[t.case.row](t.sizes)) >= 0
        assert exam.need(t.case).dtype == dtype
        if t.case.row in ("rms_norm", "rope", "kv_write"):
            assert exam.inputs(t.case, Draw(b"seed"))


def made(device: str, etas: dict[str, float], trouble: str = "") -> SpeedRecord:
    cases = [
        Measured(f"linear/normal/dtype=bfloat16,n={n}", "linear", n[0], device, 1.0, 0.9, 1.1, 1.0, 1.0, eta, trouble)
        for n, eta in etas.items()
    ]
    return SpeedRecord(kept.SCHEMA, device, "", "bfloat16", {}, 1.0, 1.0, 0.0, cases)


def test_grades() -> None:
    base = made("base", {"a1": 0.5, "a2": 0.5, "b1": 0.4})
    assert compare(base, base).grade == "A"
    half = compare(made("half", {"a1": 0.25, "a2": 0.25, "b1": 0.2}), base)
    assert (half.grade, half.overall[0]) == ("C", pytest.approx(0.5))
    uneven = compare(made("uneven", {"a1": 0.5, "a2": 0.01, "b1": 0.9}), base)
    assert uneven.grade == "functional"
    assert uneven.classes["b"][0] == pytest.approx(2.25)
    assert compare(made("a few", {"a1": 0.5, "b1": 0.4}), base).grade == kept.UNGRADED
    assert compare(made("no b", {"a1": 0.5, "a2": 0.5}), base).grade == kept.UNGRADED
    with pytest.raises(ConfigError, match="no case in common"):
        compare(made("bad", {"a1": 0.5}, "wrong"), base)


def test_records_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    kept.write(path, made("base", {"a1": 0.5}))
    assert kept.read(path) == made("base", {"a1": 0.5})
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(made("base", {"a1": 0.5})), "more": 1}))
    with pytest.raises(ConfigError, match="not a record of speed"):
        kept.read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        kept.read(tmp_path / "none.json")


def test_the_record_that_ships_is_of_a_cpu_and_counts() -> None:
    shipped = kept.read(kept.DEFAULT)
    assert shipped.device == "cpu"
    assert {m.case for m in shipped.cases} == {t.case.name for t in timed(shipped.dtype)}
    trouble = [m.trouble for m in shipped.cases if m.trouble]
    assert len(trouble) <= len(shipped.cases) // 5
    assert all(text.startswith("the machine was not quiet") for text in trouble)
    assert compare(shipped, shipped).grade == "A"
