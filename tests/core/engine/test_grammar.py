"""Grammars in the engine: what is finished has its form, others are not touched, faults end what they must."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from core import LLM, RequestError, SamplingParams
from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.engine.grammar import Compiler
from core.engine.guidance import GuidanceMatcher, open_compiler
from core.engine.messages import Add, ToEngine
from core.engine.models import find_model
from core.request import Request, SequenceOutput, Structured
from tests.core.engine.grammars import FORMS
from tests.plugins import install_hostile
from tests.shares import quick_of

DEVICES = ("cpu", "null", "hostile")
VOCAB, EOS = 384, 2
PROMPT = [5, 90, 91, 92, 93, 94]
PLAIN = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
WORDS = Structured("regex", "[a-z]{40}")


@pytest.fixture(scope="module")
def compiler(tiny_llama_dir: Path) -> Compiler:
    return open_compiler(str(tiny_llama_dir), VOCAB)


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "hostile":
            install_hostile(patch, tmp_path_factory.mktemp("plugins") / "hostile")
        yield str(request.param)


@pytest.mark.parametrize(
    ("device", "depth"),
    quick_of(product(DEVICES, (0, 1)), ("cpu", 0), ("null", 1), ("hostile", 1)),
    indirect=["device"],
)
def test_what_is_finished_has_its_form(device: str, depth: int, tiny_llama_dir: Path, compiler: Compiler) -> None:
    """Beside requests that ask for nothing, which give what they give alone."""
    options = {"fallback": "allow", "dtype": "float32", "num_kv_blocks": 80, "max_model_len": 512, "max_num_seqs": 8}
    names = [*FORMS, "person", "places"]
    finished = 0
    with LLM(str(tiny_llama_dir), device=device, pipeline_depth=depth, **options) as llm:
        alone = llm.generate(PROMPT, PLAIN)[0].token_ids
        for temperature in (0.0, 1.5):
            each = [
                SamplingParams(temperature=temperature, seed=i, max_tokens=160, structured=FORMS[name][0])
                for i, name in enumerate(names)
            ]
            outs = llm.generate([PROMPT] * (len(each) + 2), [PLAIN, *each, PLAIN])
            assert outs[0].token_ids == outs[-1].token_ids == alone
            for name, out in zip(names, outs[1:-1], strict=True):
                finished += check(compiler, name, out.finish_reason, out.text, out.token_ids)
        assert llm.engine.cache.pools[0].num_used == 0
    assert finished >= len(names)


def check(compiler: Compiler, name: str, reason: str, text: str, ids: list[int]) -> bool:
    """Whether the output is finished; then it has its form, else it is the start of one."""
    form, has_form = FORMS[name]
    if reason == "stop":
        assert has_form(text), text
        return True
    assert reason == "length"
    assert compiler.compile(form, [EOS]).accept(ids) == len(ids)
    return False


class Bench:
    """An engine whose kernels may be replaced while it runs."""

    def __init__(self, model: Path, depth: int, **options: Any) -> None:
        self.instead: dict[str, Callable[..., Any]] = {}
        config = EngineConfig(
            model=str(model), device="cpu", dtype="float32", pipeline_depth=depth,
            **{"num_kv_blocks": 60, "max_num_seqs": 4, "max_model_len": 256, **options},
        )  # fmt: skip
        self.engine = Engine(config, tap=self.tap if config.tensor_parallel_size == 1 else None)
        self.tokenizer = find_model(str(model))[0].tokenizer
        self.front = Front(self.engine.info(), [EOS], lambda text, special: self.tokenizer().encode(text, special))

    def tap(self, row: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.instead.get(row, kernel)(*args, **kwargs)

    def request(self, name: str, structured: Structured | None = None, **sampling: Any) -> Request:
        settings = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": structured is None, **sampling}
        return self.front.request(PROMPT, SamplingParams(structured=structured, **settings), request_id=name)

    def run(self, *requests: Request, turns: int = 5000) -> dict[str, SequenceOutput]:
        """The last output of each request, with all its ids."""
        for request in requests:
            self.engine.add(request)
        ids: dict[str, list[int]] = {}
        ends: dict[str, SequenceOutput] = {}
        for _ in range(turns):
            if not self.engine.busy:
                break
            for output in self.engine.step():
                ids.setdefault(output.request_id, []).extend(output.new_ids)
                output.new_ids[:] = ids[output.request_id]
                ends[output.request_id] = output
        return ends

    def generate(self, name: str, structured: Structured | None = None, **sampling: Any) -> SequenceOutput:
        return self.run(self.request(name, structured, **sampling))[name]


@pytest.fixture(scope="module", params=quick_of([0, 1], 1), ids=["depth0", "depth1"])
def bench(request: pytest.FixtureRequest, tiny_llama_dir: Path) -> Iterator[Bench]:
    made = Bench(tiny_llama_dir, request.param)
    yield made
    assert not made.engine.busy
    assert made.engine.cache.pools[0].num_used == 0
    made.engine.close()


def letters(bench: Bench, output: SequenceOutput) -> str:
    return bench.tokenizer().decode(output.new_ids)


def test_what_is_refused_leaves_the_others_alone(bench):
    alone = bench.generate("alone").new_ids
    bad = Structured("json_schema", '{"type": "array", "uniqueItems": true}')
    never = Structured("json_schema", '{"type": "integer", "minimum": 2, "maximum": 1}')
    ends = bench.run(bench.request("a"), bench.request("bad", bad), bench.request("never", never), bench.request("b"))
    for name, reason in (("bad", "uniqueItems"), ("never", "minimum")):
        assert (ends[name].finish_reason, ends[name].refused, ends[name].new_ids) == ("error", True, [])
        assert reason in (ends[name].error or "")
    assert ends["a"].new_ids == ends["b"].new_ids == alone
    assert ends["a"].finish_reason == "length"


def test_compiling_holds_up_nobody_and_can_be_aborted(bench, monkeypatch):
    """A compiler that takes as long as the test likes."""
    go_on = threading.Event()
    compile_now = bench.engine._grammars._compile

    def slow(request: Request) -> Any:
        assert go_on.wait(60)
        return compile_now(request)

    monkeypatch.setattr(bench.engine._grammars, "_compile", slow)
    for name in ("slow", "gone"):
        bench.engine.add(bench.request(name, WORDS, max_tokens=200))
    assert bench.run(bench.request("quick"), turns=40)["quick"].finish_reason == "length"
    assert bench.engine.busy, "waits"
    with pytest.raises(RequestError, match="in use"):
        bench.engine.add(bench.request("slow", WORDS))
    assert bench.engine.abort("gone").finish_reason == "abort"
    assert bench.run(turns=3) == {}
    go_on.set()
    ends = bench.run()
    assert set(ends) == {"slow"}
    assert ends["slow"].finish_reason == "stop"


def test_it_ends_where_nothing_can_follow(bench):
    """No id that ends the output is needed, and none is shown."""
    for ignore_eos in (False, True):
        out = bench.generate("x", Structured("choice", '["the dog"]'), ignore_eos=ignore_eos, min_tokens=20)
        assert (out.finish_reason, out.stop_id, letters(bench, out)) == ("stop", None, "the dog")
    out = bench.generate("x", Structured("regex", "(ab)+"), logit_bias={EOS: 100.0})
    assert (out.finish_reason, out.stop_id) == ("stop", EOS)
    out = bench.generate("x", Structured("regex", "(ab)+"), logit_bias={EOS: 100.0}, ignore_eos=True)
    assert (out.finish_reason, out.stop_id, len(out.new_ids)) == ("length", None, 20)
    assert set(letters(bench, out)) == {"a", "b"}


def test_all_masks_hold_at_once(bench):
    a, b, c = (bench.tokenizer().token_to_id(letter) for letter in "abc")
    some = {"structured": Structured("regex", "[bc]{6}[abc]*"), "allowed_token_ids": (a, b, c), "max_tokens": 12}
    out = bench.generate("x", **some, bad_words=("b",), ignore_eos=True)
    assert letters(bench, out)[:6] == "cccccc"
    drawn = bench.generate("x", **some, min_p=0.01, temperature=5.0, seed=3, repetition_penalty=1.2, logprobs=1)
    assert set(drawn.new_ids) <= {a, b, c, EOS}
    none = bench.generate("x", Structured("regex", "z+"), allowed_token_ids=(a,))
    assert none.finish_reason == "error"
    assert "leave nothing to draw" in (none.error or "")


def test_preempted_outputs_are_the_same(bench, tiny_llama_dir):
    form = Structured("regex", "[a-z]{90}")
    wanted = [bench.generate(str(i), form, temperature=1.0, seed=i, max_tokens=100) for i in range(4)]
    tight = Bench(tiny_llama_dir, bench.engine.plan.pipeline_depth, num_kv_blocks=9, max_model_len=128)
    requests = [tight.request(str(i), form, temperature=1.0, seed=i, max_tokens=100) for i in range(4)]
    ends = tight.run(*requests)
    assert tight.engine.scheduler.num_preemptions
    assert [ends[str(i)] for i in range(4)] == wanted
    assert {out.finish_reason for out in wanted} == {"stop"}
    tight.engine.close()


def test_a_mask_that_the_device_ignores_is_an_error(bench):
    bench.instead["apply_mask"] = lambda logits, mask: logits
    ends = bench.run(bench.request("masked", Structured("regex", "zq{30}")), bench.request("plain"))
    bench.instead.clear()
    assert "apply_mask" in (ends["masked"].error or "")
    assert (ends["masked"].finish_reason, ends["masked"].new_ids) == ("error", [])
    assert ends["plain"].finish_reason == "length"


def test_a_grammar_that_cannot_go_on_ends_its_request_only(bench):
    dead = Structured("grammar", 'start: "a" X\nX: /b/ & /c/')
    ends = bench.run(bench.request("dead", dead), bench.request("plain"), bench.request("words", WORDS, max_tokens=60))
    assert (ends["dead"].finish_reason, ends["dead"].refused) == ("error", False)
    assert "cannot go on" in (ends["dead"].error or "")
    assert (ends["plain"].finish_reason, ends["words"].finish_reason) == ("length", "stop")


class Fuse:
    """Fails at its third call."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner
        self.left = 3

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("blew")
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize("where", ["linear", "apply_mask", "sample", "fill", "pack"])
def test_a_fault_before_or_after_the_masks_hangs_nothing(bench, monkeypatch, where):
    """Of the forward, of the masks, of the draw: the step ends with an error, and the engine goes on."""
    wanted = bench.generate("after", WORDS, max_tokens=60)
    if where == "fill":
        fuse = Fuse(GuidanceMatcher.fill)
        monkeypatch.setattr(GuidanceMatcher, "fill", lambda self, words: fuse(self, words))
    elif where == "pack":
        fuse = Fuse(bench.engine.executor.runner.pack)
        monkeypatch.setattr(bench.engine.executor.runner, "pack", fuse)
    else:
        kernels = {"linear": torch.nn.functional.linear, "apply_mask": no_mask, "sample": best}
        bench.instead[where] = fuse = Fuse(kernels[where])
        if where == "linear":
            fuse.left = 1
    ends = bench.run(bench.request("words", WORDS, max_tokens=60), bench.request("plain"))
    bench.instead.clear()
    monkeypatch.undo()
    assert fuse.left <= 0
    assert "blew" in (ends["words"].error or "") or "blew" in (ends["plain"].error or "")
    assert bench.generate("after", WORDS, max_tokens=60) == wanted


def no_mask(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return logits


def best(logits: torch.Tensor, *more: Any, **fixed: Any) -> torch.Tensor:
    return logits.argmax(-1).int()


@pytest.mark.parametrize("depth", [0, 1])
def test_closing_does_not_wait_for_masks(tiny_llama_dir, compiler, depth):
    """With a step in flight that waits for masks nobody fills."""
    bench = Bench(tiny_llama_dir, depth)
    scheduler, executor = bench.engine.scheduler, bench.engine.executor
    scheduler.add(bench.request("x", WORDS))
    scheduler.loaded("x", compiler.compile(WORDS, [EOS]))
    plan = scheduler.schedule()
    assert plan.masked == [0]
    executor.submit(plan)
    bench.engine.close()


@pytest.mark.heavy
def test_two_ranks(tiny_llama_dir):
    """Masks reach the other rank, and so does their absence."""
    one, two = Bench(tiny_llama_dir, 1), Bench(tiny_llama_dir, 1, tensor_parallel_size=2)
    wanted = one.run(one.request("words", WORDS, max_tokens=60), one.request("plain"))
    one.engine.close()
    assert wanted["words"].finish_reason == "stop"
    got = two.run(two.request("words", WORDS, max_tokens=60), two.request("plain"))
    assert {name: out.new_ids for name, out in got.items()} == {name: out.new_ids for name, out in wanted.items()}

    def broken(self: GuidanceMatcher, words: np.ndarray) -> None:
        raise RuntimeError("blew")

    with pytest.MonkeyPatch.context() as patch:
        two.engine.add(two.request("words", WORDS, max_tokens=60))
        two.engine._grammars.wait(60)
        patch.setattr(GuidanceMatcher, "fill", broken)
        ends = two.run()
    assert "blew" in (ends["words"].error or "")
    again = two.run(two.request("words", WORDS, max_tokens=60))
    assert again["words"].new_ids == wanted["words"].new_ids
    two.engine.close()


def test_without_a_tokenizer_a_grammar_is_refused(tmp_path, tiny_llama_dir):
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in tiny_llama_dir.iterdir():
        if not path.name.startswith("tokenizer"):
            (folder / path.name).symlink_to(path)
    bench = Bench(folder, 0)
    out = bench.generate("x", WORDS)
    assert (out.finish_reason, out.refused) == ("error", True)
    assert "no tokenizer.json" in (out.error or "")
    bench.engine.close()


@pytest.mark.heavy
def test_real_weights_write_json():
    structured, has_form = FORMS["places"]
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=60, structured=structured)
    with LLM("smollm2", device="cpu") as llm:
        outs = llm.generate(["Points as JSON:", "Nothing, or [null]:"], params)
    for out in outs:
        assert out.finish_reason == "stop", out.text
        assert has_form(out.text)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("xml", "a", "of kind 'xml': it must be one of json_schema"),
        ("json_schema", "", "json_schema is empty"),
        ("json_object", "{}", "must be without text"),
        ("json_schema", "{", "is not JSON"),
        ("json_schema", "[" * 100_000, "is not JSON"),
        ("choice", "[]", "list of different strings"),
        ("choice", '["a", "a"]', "list of different strings"),
        ("choice", "[1]", "list of different strings"),
        ("regex", "a" * 300_000, "at most 262144"),
    ],
)
def test_what_is_refused_at_the_door(bench, kind, text, message):
    with pytest.raises(RequestError, match=message) as caught:
        bench.request("x", Structured(kind, text))
    assert caught.value.param == "structured"


def test_a_form_travels_between_processes(bench):
    add = Add(bench.request("x", WORDS))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(add), type=ToEngine) == add
    refusal = SequenceOutput("x", [], "error", error="no", refused=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(refusal), type=SequenceOutput).refused


def test_refusals_of_llm_are_the_requests_own(tiny_llama_dir):
    with LLM(str(tiny_llama_dir), device="cpu", dtype="float32", num_kv_blocks=60) as llm:
        with pytest.raises(RequestError, match="look-around"):
            llm.generate(PROMPT, SamplingParams(structured=Structured("regex", "(?=a)b")))
        with pytest.raises(RequestError, match="look-around"):
            list(llm.stream(PROMPT, SamplingParams(structured=Structured("regex", "(?=a)b"))))
        assert not llm.engine.busy
        outs = llm.generate(PROMPT, SamplingParams(n=3, seed=1, max_tokens=60, structured=WORDS))
        assert len({out.text for out in outs}) == 3
