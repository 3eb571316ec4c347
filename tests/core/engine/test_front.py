"""The front: what can never be served is refused at once, and keys are those the scheduler would make."""

from __future__ import annotations

from typing import Any

import pytest

from core.clock import ManualClock
from core.engine.front import Front, ReadyInfo
from core.engine.scheduler import Scheduler
from core.errors import RequestError
from core.kv.cache import KVCache
from core.kv.groups import KVGroup
from core.kv.prefix import KEY_BYTES, spec_digest
from core.request import SamplingParams

PAGE, VOCAB, MAX_LEN = 4, 100, 32
SPEC = spec_digest("a model")
EOS = (2, 7)


def make(prefix_caching: bool = True, now_s: float = 0.0, eos_ids: tuple[int, ...] = EOS) -> Front:
    info = ReadyInfo(
        device="warp", max_model_len=MAX_LEN, vocab_size=VOCAB, page_tokens=PAGE, num_kv_blocks=50,
        prefix_caching=prefix_caching, spec=SPEC, plan=[], kernels=[], notes=[],
    )  # fmt: skip
    return Front(info, eos_ids, clock=ManualClock(now_s))


def ask(front: Front, prompt: list[int], salt: str = "", **sampling: Any) -> Any:
    return front.request(prompt, SamplingParams(**sampling), request_id="r", priority=3, cache_salt=salt)


def test_everything_is_resolved() -> None:
    request = ask(make(now_s=12.5), [1, 2, 3], temperature=0.5, top_k=4, top_p=0.75, seed=9, max_tokens=6)
    assert (request.temperature, request.top_k, request.top_p, request.seed) == (0.5, 4, 0.75, 9)
    assert (request.max_tokens, request.priority, request.arrival_s) == (6, 3, 12.5)
    assert (request.request_id, request.prompt_ids) == ("r", [1, 2, 3])


def test_without_a_seed_each_request_gets_its_own() -> None:
    front = make()
    assert len({ask(front, [1]).seed for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("prompt", "sampling", "param", "message"),
    [
        ([], {}, "prompt", "the prompt is empty: it must have at least one token"),
        ([1] * 32, {}, "prompt", "the prompt is 32 tokens: the limit is 31, one less than max_model_len 32"),
        ([1] * 40, {"max_tokens": None}, "prompt", "the prompt is 40 tokens: the limit is 31"),
        ([1, 100], {}, "prompt", "token id 100 is not in the vocabulary: ids go from 0 to 99"),
        ([1, -1], {}, "prompt", "token id -1 is not in the vocabulary"),
        ([1] * 20, {"max_tokens": 13}, "max_tokens",
         "max_tokens is 13 after a prompt of 20 tokens: together they may be 32, so ask for at most 12"),
        ([1], {"top_p": 0.0}, "top_p", "top_p is 0.0"),
        ([1], {"stop_token_ids": (100,)}, "stop_token_ids", "stop_token_ids is 100"),
    ],
)  # fmt: skip
def test_refusals(prompt: list[int], sampling: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        ask(make(), prompt, **sampling)
    assert error.value.param == param


@pytest.mark.parametrize(("length", "asked", "given"), [(20, 12, 12), (31, 1, 1), (31, None, 1), (5, None, 27)])
def test_room_for_the_output(length: int, asked: int | None, given: int) -> None:
    assert ask(make(), [1] * length, max_tokens=asked).max_tokens == given


@pytest.mark.parametrize(
    ("sampling", "stop_ids"),
    [
        ({}, [2, 7]),
        ({"ignore_eos": True}, []),
        ({"stop_token_ids": (9, 7)}, [2, 7, 9]),
        ({"stop_token_ids": (9, 7), "ignore_eos": True}, [7, 9]),
    ],
)
def test_stop_ids(sampling: dict[str, Any], stop_ids: list[int]) -> None:
    assert ask(make(), [1], **sampling).stop_ids == stop_ids


def test_end_ids_outside_of_the_vocabulary_cannot_come() -> None:
    assert ask(make(eos_ids=(2, 100, 4000)), [1]).stop_ids == [2]


@pytest.mark.parametrize("salt", ["", "tenant"])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 31])
def test_keys_are_those_the_scheduler_makes(length: int, salt: str) -> None:
    """Admitted without keys, the scheduler makes them itself."""
    prompt = list(range(length))
    request = ask(make(), prompt, salt, max_tokens=1)
    assert len(request.prefix_keys) == length // PAGE * KEY_BYTES
    bare = ask(make(prefix_caching=False), prompt, salt, max_tokens=1)
    assert bare.prefix_keys == b""
    made = []
    for one in (request, bare):
        cache = KVCache([KVGroup(1, 1, 1)], [50], PAGE, prefix=True)
        scheduler = Scheduler(cache, max_tokens=64, max_seqs=1, max_model_len=MAX_LEN, spec=SPEC)
        scheduler.add(one)
        scheduler.schedule()
        made.append(scheduler.running[0].keys)
    assert made[0] == made[1] == request.prefix_keys
    if length >= PAGE:
        assert request.prefix_keys != ask(make(), prompt, salt + "x", max_tokens=1).prefix_keys
