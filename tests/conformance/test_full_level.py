"""Level "full": what a bundle says of ONNX's cases, speed and whole engines follows from its files, or is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from conformance import engine
from conformance.case import Case
from conformance.certificate import issue, sections, verify
from conformance.certificate.replay import replay
from conformance.child import sample_name
from conformance.onnx_cases.map import ADAPTERS
from core.errors import ConfigError
from core.plugin.identity import sha256
from tests.conformance.made_bundle import edit_json, edit_predicate, extra, full_run, onnx_record, relist, slower

NAME = next(iter(ADAPTERS))

pytestmark = pytest.mark.heavy


def is_real(case: Case) -> bool:
    return engine.can_rejudge(case) and bool(case["dtype"] == "bfloat16")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> issue.Run:
    """Two cases of engines are real; speed is half of what the record that ships has."""
    more = extra(onnx_record(by_reference=NAME), slower(2.0))
    return full_run(more, tmp_path_factory.mktemp("full") / issue.SAMPLES, is_real)


@pytest.fixture(scope="module")
def issued(run: issue.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "full0"
    assert issue.write(folder, run, []).result == "PASSED"
    return folder


@pytest.fixture
def bundle(issued: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(issued, tmp_path / "bundle"))


def complaints(folder: Path, level: int = 0) -> list[str]:
    return verify.complaints(verify.read(folder), level)


def test_it_says_what_the_files_say_and_can_be_judged_again(issued: Path) -> None:
    p = verify.read(issued).predicate
    assert p.onnx is not None
    assert (p.onnx.device, p.onnx.reference, p.onnx.failures) == (len(ADAPTERS) - 1, 1, [])
    assert p.speed is not None
    assert (p.speed.grade, p.speed.rho, p.speed.ships, p.speed.wrong) == ("C", (0.5, 0.5, 0.5), True, [])
    missing = complaints(issued, 2)
    assert len(missing) == 4
    assert all(c.endswith("its outputs were not kept") and "bfloat16" not in c for c in missing)
    size = sum(path.stat().st_size for path in (issued / issue.SAMPLES).iterdir())
    assert 50_000 < size < 100_000, "a third of what a bundle has"


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("onnx", "device", len(ADAPTERS)),
        ("onnx", "left_out", 0),
        ("speed", "grade", "A"),
        ("speed", "rho", [0.9, 0.9, 0.9]),
        ("speed", "ships", False),
    ],
)
def test_an_edited_section(bundle: Path, section: str, field: str, value: Any) -> None:
    edit_predicate(bundle, lambda p: p[section].update({field: value}))
    (complaint,) = complaints(bundle)
    assert "does not follow from " + section in complaint or f"of {section} does not follow" in complaint


def first(held: dict[str, Any], **change: Any) -> None:
    case = next(c for c in held["cases"] if c.get("name", NAME) == NAME)
    case.update(change)


@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        ("onnx.json", lambda held: first(held, fate="device"), "'device' does not follow from what was measured"),
        ("onnx.json", lambda held: first(held, ratio=2.0), "'reference' does not follow from what was measured"),
        ("onnx.json", lambda held: first(held, fate="waived"), "'waived' does not follow from what was measured"),
        ("onnx.json", lambda held: first(held, fate="left out"), "'left out' does not follow from what was measured"),
        ("onnx.json", lambda held: held["cases"].pop(), "does not have each of ONNX's cases once"),
        ("onnx.json", lambda held: held["cases"].append(held["cases"][0]), "does not have each of ONNX's cases once"),
        ("speed.json", lambda held: first(held, eta=0.9), "its eta does not follow from its time"),
        ("speed.json", lambda held: held.update(flops_per_s=1.0), "its eta does not follow from its time"),
        ("speed.json", lambda held: held["cases"].pop(), "does not have each of the timed cases once"),
        ("speed.json", lambda held: first(held, flops=1e15), "does not have each of the timed cases once"),
        ("speed.json", lambda held: held.update(dtype="float8"), "speed.json is of the dtype float8"),
        ("speed.json", lambda held: held.update(device="other"), "speed.json is of other, not of cpu"),
        ("speed.json", lambda held: first(held, trouble="wrong"), "what it says of speed does not follow"),
        ("baseline.json", lambda held: first(held, eta=0.01), "what it says of speed does not follow"),
    ],
)
def test_an_edited_file(bundle: Path, file: str, change: Callable[[dict[str, Any]], object], complaint: str) -> None:
    edit_json(bundle / file, change)
    found = complaints(bundle)
    assert any(complaint in c for c in found), found


def test_a_case_of_a_whole_engine_that_was_left_out(bundle: Path) -> None:
    lines = (bundle / issue.RESULTS).read_bytes().splitlines(keepends=True)
    case = next(json.loads(line)["case"] for line in lines if b'"row":"engine"' in line and b'"sample":""' in line)
    (bundle / issue.RESULTS).write_bytes(b"".join(line for line in lines if json.loads(line)["case"] != case))
    relist(bundle)
    assert f"{case} was never declared for cpu" in complaints(bundle)


def test_sections_belong_to_this_level_and_no_other(bundle: Path) -> None:
    edit_predicate(bundle, lambda p: p.update(level="engine"))
    assert any("belong to level full, and to no other" in c for c in complaints(bundle))
    edit_predicate(bundle, lambda p: p.update(level="full", onnx=None))
    assert any("what it says of ONNX's cases does not follow" in c for c in complaints(bundle))
    (bundle / sections.SPEED).unlink()
    with pytest.raises(ConfigError, match=r"speed.json cannot be read"):
        verify.read(bundle)


def test_what_fails_beyond_the_cases_fails_and_slowness_does_not(run: issue.Run, tmp_path: Path) -> None:
    failing, slow = onnx_record(failing=NAME), slower(100.0)
    one = msgspec.structs.replace(slow.cases[0], trouble="wrong after it was timed: check A")
    wrong = msgspec.structs.replace(slow, cases=[one, *slow.cases[1:]])

    def result(more: sections.Extra) -> str:
        return issue.predicate(replace(run, extra=more)).result

    assert result(extra(onnx_record(), slow)) == "PASSED"
    assert result(extra(failing, slow)) == "FAILED"
    assert result(extra(onnx_record(), wrong)) == "FAILED"
    (tmp_path / issue.SAMPLES).mkdir()
    outcomes = [msgspec.structs.replace(o, sample="") for o in run.outcomes]
    issue.write(tmp_path, replace(run, extra=extra(failing, wrong), outcomes=outcomes), [])
    (complaint,) = complaints(tmp_path)
    assert complaint == f"it says that the device failed: 0 failed, 0 missing; and {NAME}, {one.case}"
    suite = ElementTree.parse(tmp_path / issue.JUNIT).getroot()[0]
    failures = [entry.get("name", "") for entry in suite if entry.find("failure") is not None]
    assert [name.rpartition("/")[2] for name in failures] == [NAME, one.case.rpartition("/")[2]]
    assert suite.get("failures") == "2"


@pytest.mark.parametrize("what", ["logits", "kl", "less", "nothing"])
def test_a_sample_of_an_engine_that_is_not_what_it_was(bundle: Path, what: str) -> None:
    read = verify.read(bundle)
    kept = next(o for o in read.outcomes if "dtype=bfloat16,way=decode" in o.case and o.sample)
    path = bundle / issue.SAMPLES / sample_name(kept.task)
    held = load_file(path)
    if what == "logits":  # the distribution after one token is another: the likeliest one is not
        held["logits"][5].view(torch.int32)[held["logits"][5].argmax()] ^= 1 << 31
    elif what == "kl":
        held["kl"] += 1
    else:
        held["logits"] = held["logits"][:1]
    save_file(held, path)
    lines = [json.loads(line) for line in (bundle / issue.RESULTS).read_bytes().splitlines()]
    for line in lines:
        if line["case"] == kept.case and line["kind"] == "result":
            line["sample"] = sha256(path) if what != "nothing" else ""
    if what == "nothing":
        path.unlink()
    (bundle / issue.RESULTS).write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    relist(bundle)
    assert complaints(bundle) == [], "consistent, as far as hashes go"
    changed = verify.read(bundle)
    found = list(replay(replace(changed, outcomes=[o for o in changed.outcomes if o.case == kept.case])))
    expected = {"logits": "check M of logits", "kl": "kept KL", "less": "what was kept", "nothing": "were not kept"}
    assert any(expected[what] in c for c in found), found
