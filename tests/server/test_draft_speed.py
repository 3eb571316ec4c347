"""`core bench spec`: what drafts gain, on a device without arithmetic."""

import json

import pytest
from processes import run_core

from server.draft_speed import KINDS, Gain

ARGS = ("--device", "null", "--num-kv-blocks", "200", "--batch-size", "1", "--batch-size", "3", "--output-len", "12")


@pytest.mark.heavy
def test_it_tells_both_kinds_at_each_batch_size() -> None:
    done = run_core("bench", "spec", *ARGS, "--num-iters", "2", "--json")
    told = json.loads(done.stdout)
    assert told["speculative"] == "ngram"
    assert [(gain["kind"], gain["batch_size"]) for gain in told["results"]] == [(k, n) for k in KINDS for n in (1, 3)]
    for gain in told["results"]:
        assert [len(gain["without"]), len(gain["drafted"])] == [2, 2]
        assert min(gain["without"] + gain["drafted"]) > 0
        assert gain["tokens_per_draw"] >= 1
        assert 0 <= gain["accepted"] <= 1


def test_a_gain_is_a_ratio_of_medians() -> None:
    assert Gain("copy", 1, [1.0, 2.0, 30.0], [4.0, 6.0, 5.0]).ratio == 2.5
