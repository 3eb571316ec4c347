"""A real quick certificate of the cpu device, and what happens to whoever tampers with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from conformance.certificate import verify
from conformance.child import Task, sample_name
from core.errors import ConfigError
from core.plugin.identity import sha256
from tests.conformance.made_bundle import edit_predicate, relist

pytestmark = pytest.mark.heavy
CORE = Path(sys.executable).parent / "core"
NONCE = "a nonce of the verifier"


def core(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CORE, *map(str, args)], capture_output=True, text=True, check=False, timeout=280)


def new_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Files of a private and a public key."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("vendor", "project", "stranger"):
        new_key(folder, name)
    return folder


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    """The bundle of `core certify --device cpu --quick`, signed twice."""
    folder = tmp_path_factory.mktemp("issued") / "bundle"
    signed = ["--sign", keys / "vendor.pem", "--sign", keys / "project.pem"]
    done = core("certify", "--device", "cpu", "--quick", "--out", folder, "--nonce", NONCE, *signed)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def bundle(issued: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(issued, tmp_path / "bundle"))


def complaints(folder: Path, level: int = 0, **more: Any) -> list[str]:
    return verify.complaints(verify.read(folder), level, **more)


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    before = path.read_bytes()
    after = change(before)
    assert after != before
    path.write_bytes(after)


def test_it_verifies_on_every_level(issued: Path, keys: Path) -> None:
    assert complaints(issued) == []
    assert complaints(issued, 1, keys=[keys / "vendor.pub"]) == []
    done = core("verify", issued, "--level", 2, "--nonce", NONCE, "--key", keys / "project.pub")
    assert done.returncode == 0, done.stdout
    assert "verified at level 2: cpu PASSED" in done.stdout


def test_junit_tells_the_same(issued: Path) -> None:
    suite = ElementTree.parse(issued / "junit.xml").getroot()[0]
    counts = verify.read(issued).predicate.counts
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert int(suite.get("tests", "")) == counts.passed + counts.unsupported == len(suite)


def test_signatures_that_do_not_count(bundle: Path, keys: Path) -> None:
    assert complaints(bundle, 1, keys=[keys / "stranger.pub"])
    assert not complaints(bundle, 1, keys=[keys / "vendor.pub", keys / "project.pub"], threshold=2)
    assert complaints(bundle, 1, keys=[keys / "vendor.pub", keys / "stranger.pub"], threshold=2)
    with pytest.raises(ConfigError, match="not a key"):
        complaints(bundle, 1, keys=[bundle / "results.jsonl"])
    (bundle / "certificate.sig.json").unlink()
    assert complaints(bundle, 1, keys=[keys / "vendor.pub"]) == ["it is not signed"]


def test_a_byte_of_a_sample(bundle: Path, keys: Path) -> None:
    kept = next(o for o in verify.read(bundle).outcomes if o.sample and o.row in ("rms_norm", "act_mul", "rope"))
    sample = bundle / "samples" / sample_name(kept.task)
    edit(sample, lambda data: data[:-1] + bytes([data[-1] ^ 0x40]))
    assert any(sample.name in c for c in complaints(bundle))
    relist(bundle)
    assert any("is not the one that its result names" in c for c in complaints(bundle))
    edit(bundle / "results.jsonl", lambda data: b"".join(named_anew(line, sample) for line in data.splitlines(True)))
    relist(bundle)
    assert not complaints(bundle), "consistent again, as far as hashes go"
    assert complaints(bundle, 2), "but the output is wrong"
    assert complaints(bundle, 1, keys=[keys / "vendor.pub"]), "and the signature is of another file"


def named_anew(line: bytes, sample: Path) -> bytes:
    """A line of results; that of this sample with the hash that the sample has now."""
    record = json.loads(line)
    if (
        record["kind"] == "result"
        and sample_name(Task(record["row"], record["case"], record["provider"])) == sample.name
    ):
        record["sample"] = sha256(sample)
    return json.dumps(record).encode() + b"\n"


@pytest.mark.parametrize("what", ["dropped", "twice", "undeclared", "nowhere"])
def test_cases_that_were_not_run_once(bundle: Path, what: str) -> None:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        results = [line for line in lines if b'"kind":"result"' in line and b'"sample":""' in line]
        declared = next(
            line for line in lines if b'"declared"' in line and json.loads(line)["case"] == case(results[0])
        )
        if what == "dropped":
            lines.remove(results[0])
        elif what == "twice":
            lines.append(results[0])
        elif what == "undeclared":
            lines.remove(declared)
        else:
            lines.remove(results[0])
            lines.remove(declared)
        return b"".join(lines)

    edit(bundle / "results.jsonl", change)
    relist(bundle)
    expected = {"dropped": "never run", "twice": "run 2 times", "undeclared": "without having been declared"}
    assert any(expected.get(what, "never declared") in c for c in complaints(bundle))


def case(line: bytes) -> str:
    return str(json.loads(line)["case"])


def test_a_failure_called_a_pass(bundle: Path) -> None:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if b'"kind":"result"' in line and b'"findings":[[' in line)
        record = json.loads(lines[at])
        record["findings"][0][2] = 1.5
        lines[at] = json.dumps(record).encode() + b"\n"
        return b"".join(lines)

    edit(bundle / "results.jsonl", change)
    relist(bundle)
    assert any("does not follow from what was measured" in c for c in complaints(bundle))


def test_an_edited_waiver(bundle: Path) -> None:
    waiver = {
        "test": "*", "device": "cpu", "owner": "me", "issue": "#1", "reason": "none", "expires": "2999-01-01",
    }  # fmt: skip
    (bundle / "waivers.json").write_text(json.dumps([waiver]))
    assert any("waivers.json" in c for c in complaints(bundle))
    relist(bundle)
    assert any("waived" in c for c in complaints(bundle))


def test_another_nonce(bundle: Path) -> None:
    assert complaints(bundle, nonce="another") == [f"it was made with the nonce {NONCE!r}, not with yours"]
    edit_predicate(bundle, lambda p: p["seed"].update(nonce="another"))
    assert any("seed does not follow" in c for c in complaints(bundle, nonce="another"))


def test_a_plugin_that_is_not_the_one_installed(bundle: Path) -> None:
    edit_predicate(bundle, lambda p: p["plugin"]["files"].update({"plugin.py": "0" * 64}))
    found = complaints(bundle)
    assert any("plugin.py differs" in c for c in found)
    assert any("seed does not follow" in c for c in found)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [("tier", "functional", "tier"), ("result", "FAILED", "result"), ("level", "kernel", "never declared")],
)
def test_words_that_do_not_follow(bundle: Path, field: str, value: str, complaint: str) -> None:
    edit_predicate(bundle, lambda p: p.update({field: value}))
    assert any(complaint in c for c in complaints(bundle))


def test_files_that_come_and_go(bundle: Path) -> None:
    (bundle / "more.txt").write_text("hello")
    (bundle / "junit.xml").unlink()
    assert sorted(complaints(bundle)) == ["junit.xml is missing", "more.txt is not listed in certificate.json"]
    (bundle / "results.jsonl").unlink()
    with pytest.raises(ConfigError, match="not a bundle"):
        verify.read(bundle)


def test_what_is_no_bundle(tmp_path: Path) -> None:
    done = core("verify", tmp_path)
    assert done.returncode == 2
    assert "is not a bundle" in done.stderr
