"""`core bench spec`: its arithmetic by hand, its prompts, and measurements of small models."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import torch
from processes import run_here

from core import LLM, ConfigError, EngineConfig, SamplingParams
from server.commands import bench_spec
from server.draft_speed.asked import CANDIDATES, choose
from server.draft_speed.gain import Gain, Run, rates, watch
from server.draft_speed.report import Report, begin
from server.draft_speed.run import KINDS, Wanted, margin, measure
from server.draft_speed.turns import in_turns, turn_s
from server.runners import Step
from tests.core.engine.oracle import reference
from tests.core.speculate.random_heads import write_heads

EOS = 2


def run(tokens_per_s: float, tokens_per_step: float = 1.0, step_s: float = 1.0, num_draws: int = 10) -> Run:
    return Run(num_draws, tokens_per_s, tokens_per_step, step_s)


def gain(**more: object) -> Gain:
    runs = {
        "without": [run(1.0), run(2.0), run(30.0)],
        "drafted": [run(4.0, 3.0, 2.0), run(6.0, 4.0, 1.0), run(45.0, 1.0, 2.0)],
    }
    counts = {"num_draft_tokens": 60, "num_accepted_at": [8, 2, 0], "num_reached_at": [16, 8, 0]}
    case = {"kind": "copy", "batch_size": 2, "speculative": "ngram:3", "fixed": True, "max_drafts": 3, "output_len": 8}
    return Gain(**{**case, "versions": "core 1", **runs, **counts, **more})


def test_a_run_by_hand() -> None:
    """Two sequences of six tokens: the second begins late, and the first ends early. All run from 3 s to 6 s."""
    steps = [
        Step(1.0, {0: [1]}, 7.5),
        Step(3.0, {0: [2], 1: [7]}, 8.0),
        Step(3.5, {}, 8.0),
        Step(4.0, {0: [3, 4], 1: [8]}, 8.25),
        Step(6.0, {0: [5, 6], 1: [9]}, 8.5),
        Step(9.0, {1: [10, 11, 12]}, 9.0),
        Step(9.5, {}, 9.0),
    ]
    run = Run(8, 9 / 6.5, 6 / 2 / 2, 3.0 / 2, 0.5 / 2)
    assert watch(steps, 2, 6) == (run, [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])


def test_sequences_that_never_run_together_say_nothing() -> None:
    steps = [Step(1.0, {0: [1]}), Step(2.0, {0: [2, 3]}), Step(3.0, {1: [4]}), Step(4.0, {1: [5, 6]})]
    with pytest.raises(ConfigError, match=r"of 3 tokens ended before all 2 had begun: raise --output-len"):
        watch(steps, 2, 3)


def steps_of(times: list[float], order: list[int], number: int) -> Iterator[Step]:
    """A token of two sequences at each of these times, told to `order`."""
    for at_s in times:
        order.append(number)
        yield Step(at_s, {0: [1], 1: [2]})


def test_whoever_has_drawn_least_is_next() -> None:
    """The second one takes twice as long for a step: turns of half a second are two steps of the first, or one."""
    order: list[int] = []
    first = steps_of([0.25, 0.5, 0.75, 1.0, 1.25], order, 0)
    second = steps_of([0.5, 1.0, 1.5, 2.0, 2.5], order, 1)
    taken = in_turns([first, second], 0.5)
    assert [[step.end_s for step in steps] for steps in taken] == [
        [0.25, 0.5, 0.75, 1.0, 1.25],
        [0.5, 1.0, 1.5, 2.0, 2.5],
    ]
    assert order == [0, 0, 1, 1, 0, 0, 1, 1, 0, 1]


def test_turns_are_whole_generations_where_steps_overlap() -> None:
    order: list[int] = []
    in_turns([steps_of([1.0, 2.0], order, 0), steps_of([1.0, 2.0], order, 1)], turn_s(1))
    assert order == [0, 0, 1, 1]
    assert turn_s(0) < 1


def test_a_gain_by_hand() -> None:
    """Each repetition with drafts stands beside the one without that was run in turns with it."""
    one = gain()
    assert one.ratios == [4.0, 3.0, 1.5]
    assert one.measured == 3.0
    assert one.implied == 1.5
    assert (one.tokens_per_step, one.step_without_s, one.step_drafted_s) == (3.0, 1.0, 2.0)
    assert one.drafts_per_draw == 2.0
    assert one.acceptance == [0.5, 0.25, None]
    assert rates([1], [4]) == [0.25]


@pytest.fixture(scope="module")
def null_llm(tiny_llama_dir: Path) -> LLM:
    """The id that it draws is the last one plus 1, of 384."""
    return LLM(str(tiny_llama_dir), device="null", num_kv_blocks=400, enable_prefix_caching=False)


def test_answers_that_end_early_are_not_measured(null_llm: LLM) -> None:
    def length(prompt: list[int]) -> int:
        return (EOS - prompt[-1]) % 384

    some = list(itertools.islice(CANDIDATES["copy"](null_llm), 64))
    wanted = [prompt for prompt in some if length(prompt) > 200]
    assert 32 < len(wanted) < 60
    assert choose("copy", len(wanted), 200, null_llm) == wanted


@pytest.mark.parametrize(("kind", "num"), [("chat", 384), ("code", 128)])
def test_prompts_are_had_once(null_llm: LLM, kind: str, num: int) -> None:
    found = choose(kind, num, 2, null_llm)
    assert len({tuple(prompt) for prompt in found}) == num
    with pytest.raises(ConfigError, match=rf"only {num} {kind} prompts .* 2 tokens, .* {num + 1}: lower"):
        choose(kind, num + 1, 2, null_llm)


def test_copies_can_be_foretold(null_llm: LLM) -> None:
    """The last ids stand twice in what comes before, and are followed by the same ids."""
    for prompt in itertools.islice(CANDIDATES["copy"](null_llm), 5):
        num = (len(prompt) - 4) // 2
        assert prompt[:num] == prompt[num : 2 * num]
        assert prompt[2 * num :] == prompt[:4]


def test_by_how_much_an_id_was_likelier(tiny_llama_dir: Path) -> None:
    prompt = [7, 300, 2, 91]
    with LLM(str(tiny_llama_dir), device="cpu", dtype="float32") as llm:
        [output] = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
        right = output.token_ids
        other = [*right[:3], right[3] ^ 1, 0, 0]
        found = margin(llm, prompt, right, other)
    with torch.inference_mode():
        logits = reference(str(tiny_llama_dir))(torch.tensor([prompt + right[:3]])).logits[0, -1]
    assert found == pytest.approx(float(logits[right[3]] - logits[right[3] ^ 1]), abs=1e-4)
    assert found > 0


def by_text(model: Path, folder: Path) -> list[str]:
    return ["ngram:2:1-3", "ngram:5:1-3"]


def by_heads(model: Path, folder: Path) -> list[str]:
    heads = write_heads(folder / "heads", model, 2)
    return [f"mtp:{heads}:1", f"mtp:{heads}:3"]


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("drafters", [by_text, by_heads])
def test_what_is_measured(
    drafters: Callable[[Path, Path], list[str]], fixed: bool, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    """Draws and right drafts are all tokens there are; no answer is another one; fixed, no draft is spared."""
    config = EngineConfig(model=str(tiny_llama_dir), device="cpu", dtype="float32", num_kv_blocks=200)
    told: list[tuple[int, int]] = []
    wanted = Wanted(drafters(tiny_llama_dir, tmp_path), KINDS, [1, 3], 16, 2, fixed)
    gains = list(measure(config, wanted, lambda done, total: told.append((done, total))))
    most = [int(text.split(":")[2 if drafters is by_heads else 1]) for text in wanted.speculative]
    assert [(g.max_drafts, g.kind, g.batch_size) for g in gains] == list(itertools.product(most, KINDS, (1, 3)))
    assert told == [(done, 39) for done in range(1, 40)]
    for one in gains:
        assert (one.fixed, one.output_len) == (fixed, 16)
        assert one.num_answers == 2 * one.batch_size
        num_draws = sum(r.num_draws for r in one.drafted)
        assert num_draws + sum(one.num_accepted_at) == 16 * one.num_answers
        assert sum(r.num_draws for r in one.without) == 16 * one.num_answers
        assert not one.margins
        assert {r.tokens_per_step for r in one.without} == {1.0}
        assert all(r.tokens_per_step >= 1 and r.step_s > 0 and r.tokens_per_s > 0 for r in one.drafted)
        assert all(num <= right for num, right in zip(one.num_reached_at[1:], one.num_accepted_at, strict=False))
        if fixed and drafters is by_heads:  # after each draw but the first of an answer, and perhaps the last
            assert num_draws - 2 * one.num_answers <= one.num_reached_at[0] < num_draws
            assert one.drafts_per_draw > 0.7 * one.max_drafts
            assert all(0 < r.foretelling_s < r.step_s for r in one.drafted)
        if drafters is by_text:
            assert one.foretelling_s == 0
        if one.batch_size == 1:  # the model describes all steps
            assert one.implied == pytest.approx(one.measured)
    if drafters is by_text:
        assert sum(sum(one.num_accepted_at) for one in gains) > 0


def test_what_is_shown() -> None:
    other = gain(speculative="ngram:1", fixed=False, max_drafts=1, num_accepted_at=[3], num_reached_at=[4])
    report = Report("m", [gain(), msgspec.structs.replace(other, margins=[0.25, -0.125])])
    for _, columns, rows in report.cells():
        assert {len(columns)} == set(map(len, rows))
    assert report.notes()[1:] == [
        "core 1",
        "2 of 12 answers differ between the two engines: the first other id was up to 0.25 nats off",
    ]
    assert report.notes()[0].endswith("answers of 8 tokens")
    lines = report.markdown().splitlines()
    assert "| copy | 2 | ngram:3, all | 2.0 (1.0 to 30.0) | 6.0 (4.0 to 45.0) | 3.00 (1.50 to 4.00) | 0 of 6 |" in lines
    assert "| copy | 2 | ngram:3, all | 2.00 | 3.00 | 1000.0 | 2000.0 | - | 1.50 | 3.00 |" in lines
    assert "| copy | 2 | ngram:3, all | 50% of 16 | 25% of 8 | - |" in lines
    assert "| copy | 2 | ngram:1 | 75% of 4 |  |  |" in lines


@pytest.mark.parametrize("off", [0.6, -0.6])
def test_answers_that_differ_for_no_reason_are_called_a_defect(off: float) -> None:
    report = Report("m", [gain(margins=[0.1, off])])
    assert "1 differ by more than rounding: a defect" in report.notes()[-1]


def test_results_are_added_to_those_of_a_folder(tmp_path: Path) -> None:
    """What is measured again takes the place of what was."""
    report = begin("m", tmp_path)
    assert report == Report("m", [])
    report.add(gain())
    report.add(gain(batch_size=1))
    report.keep(tmp_path)
    again = begin("m", tmp_path)
    assert again == report
    again.add(gain(output_len=9))
    again.add(gain(fixed=False))
    assert [(g.case, g.output_len) for g in again.gains] == [
        (("copy", 2, "ngram:3, all"), 9),
        (("copy", 1, "ngram:3, all"), 8),
        (("copy", 2, "ngram:3"), 8),
    ]
    with pytest.raises(ConfigError, match=r"drafts.json is of m, and this is other: name another folder"):
        begin("other", tmp_path)
    (tmp_path / "drafts.json").write_text('{"model": "m"}')
    with pytest.raises(ConfigError, match=r"drafts.json has no results of core bench spec .*: name another folder"):
        begin("m", tmp_path)


def test_the_command(tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Results for programs, and in a folder, run by run; without --speculative, drafts are what followed before."""
    out = tmp_path / "out"
    args = ["--device", "null", "--num-kv-blocks", "200", "--batch-size", "2", "--output-len", "6", "--num-iters", "2"]
    args += ["--out", str(out), "--json"]
    drafts = ["--drafts", "2", "--drafts", "4", "--fixed"]
    first = run_here("bench", "spec", str(tiny_llama_dir), *args, "--prompts", "copy")
    done = run_here("bench", "spec", str(tiny_llama_dir), *args, *drafts)
    assert first.returncode == done.returncode == 0, first.stderr + done.stderr
    told = json.loads(done.stdout)
    assert told == json.loads((out / "drafts.json").read_text())
    assert told["gains"][:1] == json.loads(first.stdout)["gains"]
    cases = [("copy", "ngram:8:2-4", False)]
    cases += [(kind, drafter, True) for drafter in ("ngram:2:2-4", "ngram:4:2-4") for kind in KINDS]
    assert [(g["kind"], g["speculative"], g["fixed"]) for g in told["gains"]] == cases
    for each in told["gains"]:
        assert len(each["gains"]) == 2
        assert len(each["acceptance"]) == each["max_drafts"]
        assert each["num_differing"] == 0
    for kind in KINDS:
        assert f"| {kind} | 2 | ngram:4:2-4, all |" in (out / "drafts.md").read_text()
        assert f"{kind}, batch 2, ngram:4:2-4, all: " in done.stderr
        assert kind in (out / "drafts.svg").read_text()
    assert ElementTree.parse(out / "drafts.svg").getroot().tag.endswith("svg")


def test_all_kinds_of_prompts_may_be_asked_for() -> None:
    assert tuple(bench_spec.KINDS) == KINDS


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--drafts", "33"], ["33", "1 to 32"]),
        (["--drafts", "0"], ["0 drafts", "1 to 32"]),
        (["--batch-size", "9", "--max-num-seqs", "8"], ["--batch-size is 9", "8", "--max-num-seqs"]),
        (["--batch-size", "0"], ["--batch-size"]),
        (["--output-len", "1"], ["--output-len", "2"]),
        (["--out", "."], ["--out", "empty"]),
        (["--prompts", "prose"], ["prose", "chat"]),
        (["--speculative", "guess"], ["guess", "ngram"]),
    ],
)
def test_refused(args: list[str], words: list[str], tiny_llama_dir: Path) -> None:
    done = run_here("bench", "spec", str(tiny_llama_dir), "--device", "null", "--num-kv-blocks", "200", *args)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    for word in words:
        assert word in line
