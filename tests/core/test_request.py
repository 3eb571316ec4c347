"""Ranges of sampling parameters: the limits are taken, and what lies beyond is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.errors import RequestError
from core.request import (
    MAX_SEED,
    Request,
    SamplingParams,
    SequenceOutput,
    new_request_id,
    resolve_seed,
)

VOCAB = 100


@pytest.mark.parametrize(
    "taken",
    [
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": VOCAB},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"seed": 0},
        {"seed": MAX_SEED},
        {"seed": None},
        {"max_tokens": 1},
        {"max_tokens": None},
        {"stop": ("x",) * 16},
        {"stop_token_ids": (0, VOCAB - 1)},
    ],
)
def test_the_limits_are_taken(taken: dict[str, Any]) -> None:
    SamplingParams(**taken).check(VOCAB)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature is -0.1: it must be between 0 and 100"),
        ("temperature", 100.5, "temperature is 100.5: it must be between 0 and 100"),
        ("temperature", float("nan"), "temperature is nan: it must be between 0 and 100"),
        ("temperature", float("inf"), "temperature is inf: it must be between 0 and 100"),
        ("top_k", -2, "top_k is -2: it must be between -1 and 100, the vocabulary; 0 and -1 mean all"),
        ("top_k", VOCAB + 1, "top_k is 101: it must be between -1 and 100"),
        ("top_p", 0.0, "top_p is 0.0: it must be above 0 and at most 1"),
        ("top_p", 1.01, "top_p is 1.01: it must be above 0 and at most 1"),
        ("top_p", float("nan"), "top_p is nan: it must be above 0 and at most 1"),
        ("seed", -1, r"seed is -1: it must be between 0 and 18446744073709551615"),
        ("seed", MAX_SEED + 1, r"seed is 18446744073709551616: it must be between 0 and 18446744073709551615"),
        ("max_tokens", 0, "max_tokens is 0: it must be at least 1"),
        ("stop", ("x",) * 17, "stop is 17 strings: it must be at most 16"),
        ("stop", ("x", ""), "stop is an empty string: it must be not empty"),
        ("stop_token_ids", (5, VOCAB), "stop_token_ids is 100: it must be between 0 and 99, the vocabulary"),
        ("logprob_token_ids", (5, VOCAB), "logprob_token_ids is 100: it must be between 0 and 99, the vocabulary"),
        ("logprob_token_ids", (5,) * 21, "logprob_token_ids is 21 ids: it must be at most 20"),
        ("logprob_token_ids", (5,), r"logprob_token_ids is \[5\]: it must be left out without logprobs"),
        ("stop_token_ids", (-1,), "stop_token_ids is -1: it must be between 0 and 99"),
    ],
)
def test_what_lies_beyond_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        SamplingParams(**{field: value}).check(VOCAB)
    assert error.value.param == field


def test_messages_survive_the_wire() -> None:
    request = Request(
        request_id="r", prompt_ids=[1, 2], temperature=0.5, top_k=3, top_p=0.9, seed=MAX_SEED, max_tokens=4,
        stop_ids=[7], priority=-2, cache_salt="é", prefix_keys=bytes(range(32)), arrival_s=1.5,
    )  # fmt: skip
    output = SequenceOutput("r", [3, 4], "stop", 4, 16, None)
    for message in (request, output):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


def test_seeds() -> None:
    assert resolve_seed(0) == 0
    assert resolve_seed(MAX_SEED) == MAX_SEED
    drawn = {resolve_seed(None) for _ in range(50)}
    assert len(drawn) == 50
    assert all(0 <= seed <= MAX_SEED for seed in drawn)


def test_ids_are_new_each_time() -> None:
    ids = {new_request_id("cmpl") for _ in range(50)}
    assert len(ids) == 50
    assert all(i.startswith("cmpl-") for i in ids)
