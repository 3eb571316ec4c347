"""A plugin that was written for API 1.0 goes on working as it is; one for a later version is told apart by name."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.model import induction_path
from conformance.target import open_target
from core import LLM, EngineConfig, PluginError, SamplingParams
from core.engine.build import describe
from core.plugin import API, DeviceFacts, Event, Unavailable
from core.plugin.loader import Candidate, choose, discover
from tests.conformance.examined import failures
from tests.server.processes import run_core, serve

FROZEN = Path(__file__).parent / "api_1_0"
SHA256 = "29c4fa0656d1fc9c208501cc5c28bb66b036b310a415640d9567165984bdf61d"
"""Over names and bytes of the plugin's files. It does not change: where another plugin is needed, so is another API."""

SOURCE = (FROZEN / "steady_plugin.py").read_text()
Edit = Callable[..., Candidate]


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Install the plugin in `folder`, here and in processes started from here."""
    monkeypatch.syspath_prepend(str(folder))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delitem(sys.modules, "steady_plugin", raising=False)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Candidate:
    use(monkeypatch, FROZEN)
    return found()


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Edit:
    """edited(old, new, old, new...): the plugin with these changes, as found."""

    def make(*edits: str) -> Candidate:
        source = SOURCE
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert old in source
            source = source.replace(old, new)
        shutil.copytree(FROZEN, tmp_path / "edited")
        (tmp_path / "edited" / "steady_plugin.py").write_text(source)
        use(monkeypatch, tmp_path / "edited")
        return found()

    return make


def found() -> Candidate:
    [candidate] = [c for c in discover() if c.name == "steady"]
    return candidate


def reason(candidate: Candidate) -> str:
    assert isinstance(candidate.facts, Unavailable), candidate.facts
    return candidate.facts.reason


# API 1.0


def test_the_plugin_is_frozen() -> None:
    digest = hashlib.sha256()
    for path in sorted(path for path in FROZEN.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(path.relative_to(FROZEN).as_posix().encode() + path.read_bytes())
    assert digest.hexdigest() == SHA256


def test_it_is_found_and_nothing_is_said_about_it(steady: Candidate) -> None:
    assert isinstance(steady.facts, DeviceFacts)
    assert (steady.notes, steady.later) == ((), "")
    assert steady.distribution == "steady"


def test_it_generates_the_text_of_the_cpu(steady: Candidate) -> None:
    prompts, params = [list(range(40, 60)) * 3, list(range(90, 97))], SamplingParams(temperature=0, max_tokens=20)
    texts = []
    for device in ("cpu", "steady"):
        with LLM(str(induction_path()), device=device, dtype="float32", fallback="allow") as llm:
            texts.append([output.token_ids for output in llm.generate(prompts, params)])
            plan = llm.plan
    assert texts[0] == texts[1]
    own = {"kv_layout", "kv_write", "linear", "rms_norm"}
    assert {b.row for b in plan.bindings if b.provider == "steady"} == own
    assert plan.shapes.tokens == (8, 64)
    assert not [note for note in plan.notes if "API" in note]
    plugin = sys.modules["steady_plugin"]
    assert plugin.Steady.loaded == 1
    assert plugin.Steady.compiled > 2


@pytest.mark.parametrize("row", ["linear", "kv_gather", "d2h"])
def test_its_kernels_and_copies_pass(steady: Candidate, row: str) -> None:
    assert not failures(row, open_target("steady"), "steady")


def test_an_event_that_only_waits_is_never_done_too_soon() -> None:
    """`Event.done` came after 1.0: by default it waits."""

    class Late(Event):
        happened = False

        def synchronize(self) -> None:
            self.happened = True

    event = Late()
    assert event.done()
    assert event.happened


@pytest.mark.heavy
def test_it_is_certified_and_serves(steady: Candidate, tmp_path: Path) -> None:
    done = run_core("certify", "--device", "steady", "--quick", "--out", str(tmp_path / "bundle"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED, tier functional, level quick" in done.stdout
    with serve(tmp_path, "smollm2", "--device", "steady", "--fallback", "allow", "--dtype", "float32") as server:
        question = [{"role": "user", "content": "Name the capital of France."}]
        body = {"model": "smollm2", "messages": question, "temperature": 0, "max_tokens": 16}
        answer = server.post("/v1/chat/completions", body)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]


# Later versions


def test_the_next_major_version_is_refused_by_name(edited: Edit) -> None:
    major = API[0] + 1
    candidate = edited("API = (1, 0)", f"API = ({major}, 0)")
    assert reason(candidate) == f"plugin steady was written for API {major}, and this core speaks {API[0]}: update core"
    done = run_core("plan", str(induction_path()), "--device", "steady")
    assert done.returncode == 2
    assert done.stderr == f"error: device steady cannot be used: {reason(candidate)}\n"


SPOKEN = f"{API[0]}.{API[1]}"
NEWER = f"plugin steady was written for API {API[0]}.99, and this core speaks {SPOKEN}: update core for what came later"
LATER = ("API = (1, 0)", f"API = ({API[0]}, 99)")


def test_a_later_minor_version_runs_and_the_plan_says_so(edited: Edit) -> None:
    candidate = edited(*LATER)
    assert isinstance(candidate.facts, DeviceFacts)
    plan = describe(EngineConfig(model=str(induction_path()), device="steady", fallback="allow"))
    assert plan.notes == (NEWER,)


HOOK = "\n\n@hookimpl\ndef core_tuning(facts):\n    return []\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("\n\n@hookimpl\ndef core_device", f"{HOOK}\n\n@hookimpl\ndef core_device", "unknown hook 'core_tuning'"),
        ("def core_kernels(facts:", "def core_kernels(links, facts:", "links"),
        ("max_depth=1,", "max_depth=1, sparsity=2,", "unexpected keyword argument 'sparsity'"),
    ],
)
def test_what_a_later_minor_version_uses_in_vain(edited: Edit, old: str, new: str, words: str) -> None:
    """The reason, and that core is what has to be updated."""
    candidate = edited(*LATER, old, new)
    assert words in reason(candidate)
    assert reason(candidate).endswith(f"; {NEWER}")
    with pytest.raises(PluginError, match=r"device steady cannot be used: .*update core for what came later"):
        choose([candidate], "steady")


def test_the_same_without_a_later_version_is_a_mistake_of_the_plugin(edited: Edit) -> None:
    candidate = edited("max_depth=1,", "max_depth=1, sparsity=2,")
    assert reason(candidate).endswith("unexpected keyword argument 'sparsity'")


def test_names_that_are_not_here_yet(edited: Edit) -> None:
    candidate = edited("    Unavailable,\n", "    Unavailable,\n    Warp,\n", *LATER)
    assert "cannot import name 'Warp' from 'core.plugin'" in reason(candidate)
    assert reason(candidate).endswith(
        f"; this core speaks API {SPOKEN}: update core, or take the plugin's release for it"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("graph_safe=True", "graph_safe=True, sparse=True", f"cannot be loaded ({NEWER}): TypeError: Support"),
        (
            'Implementation("rms_norm"',
            'Implementation("rms_warp"',
            f"steady supplies rms_warp: there is no such kernel in API {SPOKEN}, which this core speaks: update core",
        ),
    ],
)
def test_kernels_of_a_later_minor_version(edited: Edit, old: str, new: str, words: str) -> None:
    edited(*LATER, old, new)
    with pytest.raises(PluginError) as error:
        describe(EngineConfig(model=str(induction_path()), device="steady", fallback="allow"))
    assert words in str(error.value)
