"""Whole engines: right devices pass, and wrong kernels fail the cases that are there for them."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from conformance import engine
from conformance.case import Case, Result
from conformance.certificate import issue
from conformance.certify import Order, certify
from conformance.child import sample_name
from conformance.engine import texts
from core.errors import ConfigError
from core.plugin import DeviceFacts, loader
from core.plugin.identity import sha256
from tests.conformance.wrong_chips import FEW, LOST, MASK, MIXED, ROPE, STALE, install_chip
from tests.plugins import install_hostile, install_plugin

ROOT = b"a root"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Devices set how many threads torch uses: put back what was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def facts(device: str) -> DeviceFacts:
    found = loader.choose(loader.discover(), device).facts
    assert isinstance(found, DeviceFacts)
    return found


def supported(device: str, pattern: str) -> list[Case]:
    known = facts(device)
    return [c for c in engine.cases() if fnmatchcase(c.name, f"engine/{pattern}") and not engine.refusal(c, known)]


def run(device: str, pattern: str) -> Result:
    """Of the one case that matches."""
    (case,) = supported(device, pattern)
    return engine.examine(case, device, ROOT)[0]


QUICK = (
    "kl/*way=prompt*",
    "chunks/*chunk=page+1",
    pytest.param("prefix/*", marks=pytest.mark.heavy),
    pytest.param("preempt/*cached=False", marks=pytest.mark.heavy),
)


@pytest.mark.parametrize("pattern", QUICK)
def test_the_cpu_passes(pattern: str) -> None:
    result = run("cpu", pattern.replace("/*", "/model=induction,dtype=bfloat16*"))
    assert result.status == "pass", result.message
    assert result.findings


F32 = "/model=induction,dtype=float32*"


@pytest.mark.parametrize(
    ("wrong", "fails", "passes"),
    [
        pytest.param(ROPE, f"kl{F32}way=prompt*", None, id="rope", marks=pytest.mark.heavy),
        pytest.param(MASK, f"greedy{F32}", f"batch{F32}", id="mask", marks=pytest.mark.heavy),
        pytest.param(STALE, f"kl{F32}way=decode*", None, id="stale", marks=pytest.mark.heavy),
        pytest.param(MIXED, f"batch{F32}", f"kl{F32}way=prompt*", id="mixed", marks=pytest.mark.heavy),
        pytest.param(FEW, f"drafts{F32}", f"depth{F32}", id="few", marks=pytest.mark.heavy),
        pytest.param(LOST, f"chunks{F32}chunk=page-1", None, id="lost"),
    ],
)
def test_wrong_kernels_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, fails: str, passes: str | None
) -> None:
    install_chip(monkeypatch, tmp_path, wrong)
    result = run("chip", fails)
    assert result.status in ("fail", "error"), result.findings  # reading what was never written is an error
    if passes:
        result = run("chip", passes)
        assert result.status == "pass", result.message


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["batch", "chunks"])
def test_kernels_that_claim_to_be_batch_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    install_chip(monkeypatch, tmp_path, "", claimed=True)
    result = run("chip", f"invariant{F32}way={way}*")
    assert result.status == "fail"
    assert {f.check for f in result.findings if not f.ok} == {"D"}


@pytest.mark.heavy
@pytest.mark.parametrize(("part", "status"), [("/ 254", "pass"), ("/ 2540", "fail")])
def test_kv_entries_may_be_as_coarse_as_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, status: str
) -> None:
    source = (Path(__file__).parents[1] / "devices" / "hostile" / "hostile_device.py").read_text()
    assert "/ 254)" in source
    install_plugin(monkeypatch, tmp_path / "site", "hostile", source.replace("/ 254)", f"{part})"))
    result = run("hostile", f"kl{F32}way=decode*")
    assert result.status == status, result.findings
    assert all(f.ok for f in result.findings if f.output != "logits"), "what is not fine is fine enough for these"


def test_what_a_device_does_not_support_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {case.name: case for case in engine.cases()}

    def why(pattern: str, **other: object) -> str:
        (case,) = [c for name, c in cases.items() if fnmatchcase(name, f"engine/{pattern}")]
        known = DeviceFacts(**{"name": "cpu", "torch_device_type": "", "arch": "", "count": 1, "memory_bytes": 0,
                               "dtypes": ("float32",), **other})  # fmt: skip
        return engine.refusal(case, known) or ""

    assert why("ranks/model=induction,dtype=bfloat16*") == "dtype bfloat16 is not among float32"
    assert "has 1 cpu device" in why(f"ranks{F32}")
    assert not why(f"ranks{F32}", accelerator=False)
    assert "max_depth is 0" in why(f"depth{F32}", max_depth=0)
    assert "any shape" in why(f"compiled{F32}")
    assert "no batch-invariant kernel for " in why(f"invariant{F32}way=batch*", name="null")
    assert not why(f"invariant{F32}way=batch*")
    assert not why(f"prefix{F32}")
    assert not why("kl/model=smollm2,dtype=float32*")

    def not_there(name: str) -> None:
        raise ConfigError(f"{name}: not installed")

    monkeypatch.setattr(texts, "find_model", not_there)
    texts.missing.cache_clear()
    assert why("kl/model=smollm2,dtype=float32*") == "smollm2: not installed"
    texts.missing.cache_clear()


def test_texts_hang_on_the_seed() -> None:
    for model in ("induction", "smollm2"):
        ids = texts.texts(model, b"1", 2, 120)
        assert ids.shape == (2, 120)
        assert torch.equal(ids, texts.texts(model, b"1", 2, 120))
        assert not torch.equal(ids, texts.texts(model, b"2", 2, 120))


@pytest.mark.heavy
def test_an_engine_case_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_chip(monkeypatch, tmp_path, "")
    order = Order("chip", tmp_path / "bundle", "engine", f"engine/kl{F32}way=decode*", jobs=1)
    found = certify(order, lambda *_: None)
    assert found.predicate is None
    assert [(d.provider, d.unsupported) for d in found.declared] == [("chip", "")]
    assert [(o.row, o.bound_by, o.status) for o in found.outcomes] == [("engine", "chip", "pass")]
    assert sha256(order.folder / issue.SAMPLES / sample_name(found.outcomes[0].task)) == found.outcomes[0].sample


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", ["cpu", "hostile"])
def test_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    install_hostile(monkeypatch, tmp_path / "site")
    cases = supported(device, "*")
    assert {case["model"] for case in cases} == {"induction", "smollm2"}
    results = [engine.examine(case, device, ROOT)[0] for case in cases]
    assert [f"{r.case}: {r.message}" for r in results if r.status != "pass"] == []
