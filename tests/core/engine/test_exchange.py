"""KV entries of one engine in another: bits and texts stay, and requests that did not ask never rest on them."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from core import LLM, CapacityError, KVEntries, RequestError, SamplingParams
from core.kv.events import BlockStored, KVEvents
from core.kv.prefix import chain_keys, root_key
from tests.core.engine.test_swap import HOSTILE, in_place
from tests.models.tiny import write_family
from tests.plugins import install_plugin

TEXT = random.Random(5).choices(range(3, 384), k=141)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
LOGPROB_ATOL = 1e-4
TUNED = "model.layers.1.mlp.up_proj.weight"
INT8_ATOL = 0.12  # as in test_parity.py
Open = Callable[..., LLM]


@pytest.fixture
def open_llm(tiny_llama_dir: Path) -> Iterator[Open]:
    with ExitStack() as opened:

        def make(model: Path = tiny_llama_dir, **options: Any) -> LLM:
            settings = {"device": "cpu", "dtype": "float32", "fallback": "allow", "num_kv_blocks": 80}
            return opened.enter_context(LLM(str(model), **{**settings, "max_model_len": 256, **options}))

        yield make


def imported(provenance: str, params: SamplingParams = GREEDY) -> SamplingParams:
    return msgspec.structs.replace(params, kv_provenance=provenance)


def entries_of(llm: LLM, prompt: list[int] = TEXT) -> KVEntries:
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1))
    return llm.export_kv(prompt)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_text_goes_on_elsewhere(open_llm: Open, depth: int) -> None:
    """As it would have where the entries come from, and native requests find nothing of them, nor of what follows."""
    source, target = open_llm(), open_llm(pipeline_depth=depth)
    entries = KVEntries.from_bytes(entries_of(source).to_bytes())
    assert entries.token_ids == TEXT[:128]
    [native] = source.generate([TEXT], GREEDY)
    provenance = target.import_kv(entries)
    assert provenance.startswith("cpu/")
    [found] = target.generate([TEXT], imported(provenance))
    [plain] = target.generate([TEXT], GREEDY)
    assert (found.num_cached, plain.num_cached) == (128, 0)
    assert found.token_ids == plain.token_ids == native.token_ids
    assert [a.logprob for a in found.logprobs] == pytest.approx([b.logprob for b in native.logprobs], abs=LOGPROB_ATOL)
    follow = TEXT + found.token_ids + [9] * 8
    assert target.generate([follow], imported(provenance))[0].num_cached == 144
    assert target.export_kv(TEXT).token_ids == TEXT[:128], "what was computed here"
    assert target.import_kv(entries) == provenance, "twice changes nothing"
    target.engine.scheduler.check_idle()


def test_bits_stay(open_llm: Open) -> None:
    """Through bytes and another device of the same kind."""
    target = open_llm()
    entries = entries_of(open_llm())
    provenance = target.import_kv(KVEntries.from_bytes(entries.to_bytes()))
    cache = target.engine.cache
    keys = chain_keys(root_key(target.engine.info().spec, "", provenance), entries.token_ids, cache.page_tokens)
    lease = cache.lease(keys, len(entries.token_ids))
    [found] = target.engine.executor.run(lambda runner: runner.read_pages([each.tolist() for each in lease.pages]))
    cache.cancel(lease)
    assert torch.equal(found, entries.groups[0])
    assert found.shape == (3, 2, 8, 16, 2, 16)


def test_from_a_device_with_a_layout_of_its_own(open_llm: Open, monkeypatch, tmp_path: Path) -> None:
    """INT8 in pages of 64 becomes float32 in pages of 16, and is off by no more than its layout declares."""
    install_plugin(monkeypatch, tmp_path / "plugin", "hostile", in_place(HOSTILE))
    sizes = {"max_num_seqs": 2, "max_num_batched_tokens": 96}
    source, target = open_llm(device="hostile", num_kv_blocks=16, **sizes), open_llm()
    entries = entries_of(source)
    [native] = target.generate([TEXT], GREEDY)
    exact = target.export_kv(TEXT).groups[0]
    provenance = target.import_kv(entries)
    assert provenance.startswith("hostile/hostile-int8-float32/")
    [found] = target.generate([TEXT], imported(provenance))
    assert found.num_cached == 128
    off = (found.logprobs[0].logprob, native.logprobs[0].logprob)
    assert off[0] == pytest.approx(off[1], abs=INT8_ATOL)
    theirs = entries.groups[0].flatten(2, 3)[0, :, :128]  # of the first layer: nothing before it was rounded
    most = exact.flatten(2, 3)[0, :, :128]
    error = (theirs - most).abs() / most.abs().amax(-1, keepdim=True)
    assert 0 < error.max() <= (1 + 2**-12) / 254 * 1.001
    back = source.import_kv(entries)
    assert source.generate([TEXT], imported(back))[0].token_ids == source.generate([TEXT], GREEDY)[0].token_ids


@pytest.mark.parametrize("window", [16, 17, 20])
def test_windows_take_what_is_seen(open_llm: Open, tmp_path: Path, window: int) -> None:
    model = write_family(tmp_path / "gemma3", "gemma3", sliding_window=window)
    source, target = open_llm(model, block_size=4), open_llm(model, block_size=4)
    entries = entries_of(source)
    assert [group.shape[2] for group in entries.groups] == [35, -(-(window - 1) // 4)]
    provenance = target.import_kv(entries)
    [found] = target.generate([TEXT], imported(provenance))
    assert found.num_cached == 140
    assert found.token_ids == source.generate([TEXT], GREEDY)[0].token_ids
    wider = open_llm(model, block_size=8)
    with pytest.raises(RequestError, match="page size, beside a window, is 4 in these entries and must be 8"):
        wider.import_kv(entries)


def test_beside_requests(open_llm: Open) -> None:
    """Between two steps, one of them in flight; routers are told."""
    entries = entries_of(open_llm())
    target = open_llm(pipeline_depth=1)
    engine = target.engine
    engine.cache.events = events = KVEvents(16)
    engine.add(target._front.request(TEXT[:50], GREEDY, request_id="a"))
    while not engine.scheduler.running or engine.scheduler.running[0].num_outputs < 4:
        engine.step()
    assert engine.scheduler.num_in_flight
    events.take()
    provenance = target.import_kv(entries)
    [stored] = events.take()
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == entries.token_ids
    ids = []
    while engine.busy:
        ids += [i for output in engine.step() for i in output.new_ids]
    assert target.generate([TEXT], imported(provenance))[0].num_cached == 128
    assert target.generate([TEXT[:50]], GREEDY)[0].token_ids[-len(ids) :] == ids


def test_an_import_that_fails_leaves_nothing(open_llm: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of(open_llm())
    target = open_llm()
    runner = target.engine.executor.runner

    def broken(*_: object) -> None:
        raise RuntimeError("the copy broke")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_pages", broken)
        with pytest.raises(RuntimeError, match="the copy broke"):
            target.import_kv(entries)
    target.engine.scheduler.check_idle()
    assert target.engine.cache.pools[0].num_cached == 0
    assert target.generate([TEXT], imported(target.import_kv(entries)))[0].num_cached == 128


def test_provenance_must_have_been_imported(open_llm: Open) -> None:
    llm = open_llm()
    with pytest.raises(RequestError, match=r"kv_provenance is 'x': choose what import_kv returned \(nothing was imp"):
        llm.generate([TEXT], imported("x"))
    provenance = llm.import_kv(entries_of(open_llm()))
    with pytest.raises(RequestError, match=rf"kv_provenance is 'x'.*\({provenance}\)"):
        llm.generate([TEXT], imported("x"))


def test_what_cannot_be_exported(open_llm: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no whole page of these 141 tokens is cached"):
        open_llm().export_kv(TEXT)
    with pytest.raises(RequestError, match="export_kv needs the prefix cache, which is off"):
        open_llm(enable_prefix_caching=False).export_kv(TEXT)
    install_plugin(monkeypatch, tmp_path / "plugin", "hostile", HOSTILE)
    kept = open_llm(device="hostile", num_kv_blocks=16, max_num_seqs=2, max_num_batched_tokens=4)
    with pytest.raises(RequestError, match="export_kv cannot read the form in which device hostile keeps KV pages"):
        kept.export_kv(TEXT)


@pytest.mark.heavy
def test_ranks_have_a_part_of_the_heads_each(open_llm: Open) -> None:
    with pytest.raises(RequestError, match="import_kv needs all heads in one rank, and tensor_parallel_size is 2"):
        open_llm(tensor_parallel_size=2).import_kv(entries_of(open_llm()))


def test_what_does_not_fit(open_llm: Open, make_llama: Callable[..., Path]) -> None:
    entries = entries_of(open_llm())
    other = open_llm(make_llama(rope_parameters={"rope_theta": 500.0, "rope_type": "default"}))
    with pytest.raises(RequestError, match=r"ropes is .*theta=10000.0.* and must be .*theta=500.0"):
        other.import_kv(entries)
    small = open_llm(num_kv_blocks=8, max_model_len=64)
    with pytest.raises(CapacityError, match="these entries take 8 KV pages and 7 can be had"):
        small.import_kv(entries)
    small.engine.scheduler.check_idle()
    with pytest.raises(RequestError, match="dtype is float32 in these entries and must be bfloat16"):
        open_llm(dtype="bfloat16").import_kv(entries)


def test_entries_of_other_weights_are_refused(open_llm: Open, tiny_llama_dir: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    shutil.copytree(tiny_llama_dir, tuned)
    shard = next(path for path in sorted(tuned.glob("*.safetensors")) if TUNED in load_file(path))
    weights = load_file(shard)
    weights[TUNED][0, 0] += 0.5
    save_file(weights, shard, {"format": "pt"})
    entries = entries_of(open_llm(tuned))
    with pytest.raises(RequestError, match=r"weights is .* in these entries and must be .*: export from"):
        open_llm().import_kv(entries)


def test_entries_that_are_not_what_they_say(open_llm: Open) -> None:
    entries = entries_of(open_llm())
    llm, raw, cut = open_llm(), entries.to_bytes(), entries.groups[0][:, :, :7]
    for wrong, words in (
        ({"groups": [cut]}, r"group 0 is \(3, 2, 7, 16, 2, 16\) torch.float32 in these entries and must be \(3, 2, 8"),
        ({"groups": [entries.groups[0].half()]}, "group 0 is .* torch.float16"),
        ({"groups": []}, "entries have 128 ids"),
        ({"token_ids": TEXT[:127]}, "entries have 127 ids: not whole pages of 16"),
        ({"token_ids": [-1, *TEXT[:127]]}, "outside of the vocabulary of 384"),
    ):
        with pytest.raises(RequestError, match=words):
            llm.import_kv(dataclasses.replace(entries, **wrong))
    for broken in (
        b"",
        raw[:100],
        raw[:-1],
        raw.replace(b"core-kv-1", b"core-kv-9"),
        raw.replace(b"page_tokens", b"page_tokenz"),
    ):
        with pytest.raises(RequestError, match="these bytes are no KV entries"):
            KVEntries.from_bytes(broken)
    llm.engine.scheduler.check_idle()
