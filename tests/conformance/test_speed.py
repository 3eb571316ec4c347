"""Speed: what counts and what does not, on real kernels that are slow, wrong, or remember."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from conformance.case import Case
from conformance.speed import record as kept
from conformance.speed.apart import record_apart
from conformance.speed.cases import Timed, timed
from conformance.speed.measure import record
from conformance.speed.probe import Ceilings
from conformance.speed.record import Measured, SpeedRecord, compare
from conformance.speed.timing import measure
from conformance.target import Host, host_target
from core.errors import ConfigError, DeviceError
from core.kernels.cost import COSTS
from core.kernels.reference import dense
from core.kernels.row import Implementation, Kernel
from core.plugin.facts import DeviceFacts, Peaks, Support
from tests.conformance.test_pytest_plugin import ONLY_NORM
from tests.plugins import install_plugin

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


@pytest.mark.heavy
def test_one_that_gets_lazy_does_not_count() -> None:
    calls = [0]

    def lazy(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        calls[0] += 1
        return dense.rms_norm(x, w, eps=eps) if calls[0] < 20 else torch.zeros_like(x)

    assert one(lazy).trouble.startswith("wrong after it was timed")


@pytest.mark.heavy
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
    nothing = compare(made("bad", {"a1": 0.5}, "wrong"), base)
    assert (nothing.grade, nothing.overall, nothing.rho) == (kept.UNGRADED, None, {})


@pytest.mark.heavy
def test_a_kernel_that_raises_is_wrong() -> None:
    def refuses(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        raise RuntimeError("not at this size")

    measured = one(refuses)
    assert measured.trouble == "wrong: RuntimeError: not at this size"
    assert (measured.seconds, measured.eta) == (0.0, 0.0)


@pytest.mark.heavy
def test_a_case_that_nobody_takes_is_told() -> None:
    narrow = Implementation("rms_norm", dense.rms_norm, "narrow", Support(max_k=5))
    [measured] = record(host_target(narrow), "float32", lambda *_: None, [NORM]).cases
    assert measured.trouble.startswith("not supported: ")
    assert "k 1024 is over 5" in measured.trouble


def test_peaks_that_are_stated_are_held_against_the_probe() -> None:
    plain = made("base", {"a1": 0.5})
    assert (plain.trouble, plain.limits) == ([], Ceilings(1.0, 1.0, 0.0))

    def stated(flops: float | None, moved: float | None) -> SpeedRecord:
        return msgspec.structs.replace(plain, stated_flops_per_s=flops, stated_bytes_per_s=moved)

    assert stated(1.4, 1.0).trouble == []
    assert stated(1.4, 1.0).limits == Ceilings(1.0, 1.0, 0.0)
    assert stated(2.0, 1.0).trouble == ["the probe reached 1 FLOP/s, 0.50 of the 2 that the device states"]
    assert stated(2.0, 10.0).limits == Ceilings(1.4, 7.0, 0.0), "a probe that is bad makes nothing look good"
    assert stated(None, 0.5).trouble == ["the probe reached 1 bytes/s, 2.00 of the 0.5 that the device states"]


class Stating(Host):
    """A host that states more than there is."""

    def probe(self) -> DeviceFacts:
        return replace(super().probe(), peaks=Peaks(float32=1e18, bytes_per_s=1e18))


@pytest.mark.heavy
def test_a_device_that_states_too_much_is_told_so() -> None:
    target = host_target(Implementation("rms_norm", dense.rms_norm, "made"), device=Stating())
    found = record(target, "float32", lambda *_: None, [NORM])
    assert [text.rpartition(" of the ")[2] for text in found.trouble] == ["1e+18 that the device states"] * 2
    [measured] = found.cases
    assert measured.eta * measured.seconds == pytest.approx(found.limits.least_s(measured.flops, measured.moved_bytes))
    assert found.limits.flops_per_s == 0.7e18


@pytest.mark.heavy
def test_a_device_that_dies_while_it_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "def open(self, index):\n        exit(3)"
    source = ONLY_NORM.replace("EPS", "eps").replace("def open(self, index):", dies)
    install_plugin(monkeypatch, tmp_path / "site", "chip", source)
    with pytest.raises(DeviceError, match="the process that timed chip died with exit code 3"):
        record_apart("chip", lambda *_: None)


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
