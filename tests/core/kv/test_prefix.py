"""Keys against their definition, and the prefix index against a twin that walks keys from the start."""

from __future__ import annotations

import hashlib
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from core.kv.prefix import KEY_BYTES, PrefixIndex, ahead_keys, chain_keys, root_key, spec_digest

operations = 0
NUM_PAGES = 60


# Keys


@given(st.binary(max_size=40), st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 7))
def test_keys_follow_their_definition(parent: bytes, ids: list[int], page: int) -> None:
    """key = SHA-256(key before | ids as little-endian u32), for full pages only."""
    wanted, key = [], parent
    for i in range(0, len(ids) - page + 1, page):
        key = hashlib.sha256(key + b"".join(struct.pack("<I", t) for t in ids[i : i + page])).digest()
        wanted.append(key)
    assert chain_keys(parent, ids, page) == b"".join(wanted)


@given(st.lists(st.integers(0, 999), min_size=4, max_size=40), st.integers(0, 9))
def test_keys_can_be_made_in_parts(ids: list[int], cut: int) -> None:
    root = root_key(spec_digest("m"), "")
    start = chain_keys(root, ids[: cut * 2], 2)
    rest = chain_keys(start[-KEY_BYTES:] or root, ids[len(start) // KEY_BYTES * 2 :], 2)
    assert start + rest == chain_keys(root, ids, 2)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 5), st.integers(1, 9), st.integers(0, 9))
def test_keys_that_look_ahead(ids: list[int], page: int, num: int, first: int) -> None:
    """SHA-256(key | the next `num` ids), for pages that have so many after them; they can be made in parts, too."""
    keys, wanted = chain_keys(b"root", ids, page), []
    for i in range(len(ids) // page):
        following = ids[(i + 1) * page :][:num]
        if len(following) == num:
            key = keys[i * KEY_BYTES : (i + 1) * KEY_BYTES]
            wanted.append(hashlib.sha256(key + b"".join(struct.pack("<I", t) for t in following)).digest())
    assert ahead_keys(keys, ids, page, num) == b"".join(wanted)
    assert ahead_keys(keys, ids, page, num, first) == b"".join(wanted[first:])


def test_a_root_follows_its_definition() -> None:
    spec = spec_digest("model", "dtype")
    assert root_key(spec, "tenant é") == hashlib.sha256(spec + "tenant é".encode()).digest()
    assert root_key(spec, "") == hashlib.sha256(spec).digest()
    assert root_key(spec, "x", "there") == root_key(spec_digest(spec.hex(), "there"), "x")


def test_different_salts_and_specs_never_meet() -> None:
    ids = list(range(64))
    roots = [
        root_key(spec_digest(*parts), salt, provenance)
        for parts in (("a",), ("b",))
        for salt in ("", "x", "y")
        for provenance in ("", "x", "y")
    ]
    keys = [chain_keys(root, ids, 16) for root in roots]
    every = {chain[i : i + KEY_BYTES] for chain in keys for i in range(0, len(chain), KEY_BYTES)}
    assert len(every) == len(roots) * 4


def test_a_digest_follows_its_definition() -> None:
    """SHA-256(for each part: its length in bytes as little-endian u64 | UTF-8): the same on all machines."""
    wanted = b"".join(struct.pack("<Q", len(raw)) + raw for raw in (b"model", "größer".encode(), b"x" * 300))
    assert spec_digest("model", "größer", "x" * 300) == hashlib.sha256(wanted).digest()


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_digests_are_unambiguous(one: list[str], other: list[str]) -> None:
    assert (spec_digest(*one) == spec_digest(*other)) == (one == other)


@pytest.mark.parametrize(("one", "other"), [(("ab", "c"), ("a", "bc")), ((), ("",)), (("", "a"), ("a", ""))])
def test_parts_do_not_run_together(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert spec_digest(*one) != spec_digest(*other)


# The index


class IndexMachine(RuleBasedStateMachine):
    """A tree of chains. As the pool does, it forgets a page only after all that continue it."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.index = PrefixIndex(NUM_PAGES)
        self.page_of: dict[tuple[int, ...], int] = {}  # chain of ids -> page
        self.free = list(range(1, NUM_PAGES))

    def keys(self, chain: tuple[int, ...]) -> bytes:
        """Of a chain of pages of one token each."""
        return chain_keys(b"root", list(chain), 1)

    def some_chain(self) -> tuple[int, ...]:
        """A known one, perhaps cut, perhaps continued by what may be known or not."""
        chain = self.rng.choice([(), *self.page_of])
        cut = self.rng.randint(0, len(chain))
        return chain[:cut] + tuple(self.rng.randrange(2) for _ in range(self.rng.randint(0, 3)))

    def leaves(self) -> list[tuple[int, ...]]:
        inner = {chain[:-1] for chain in self.page_of}
        return [chain for chain in self.page_of if chain not in inner]

    @precondition(lambda self: self.free)
    @rule()
    def insert(self) -> None:
        chain = (*self.rng.choice([(), *self.page_of]), self.rng.randrange(2))
        if chain in self.page_of:
            with pytest.raises(AssertionError, match=r"^two pages under one key"):
                self.index.insert(self.keys(chain)[-KEY_BYTES:], self.free[-1], np.zeros(0, np.int32))
            return
        page = self.free.pop(self.rng.randrange(len(self.free)))
        self.page_of[chain] = page
        # What follows in the table of the sequence that filled it is not the index's to read.
        path = [self.page_of[chain[: i + 1]] for i in range(len(chain))] + [999] * self.rng.randrange(3)
        self.index.insert(self.keys(chain)[-KEY_BYTES:], page, np.array(path, np.int32))
        self.check(chain)

    @precondition(lambda self: self.page_of)
    @rule()
    def forget(self) -> None:
        chain = self.rng.choice(self.leaves())
        page = self.page_of.pop(chain)
        assert self.index.forget(page) == self.keys(chain)[-KEY_BYTES:]
        with pytest.raises(AssertionError, match=r"^a page that is not known cannot be forgotten"):
            self.index.forget(page)
        self.free.append(page)
        self.check(chain)

    @rule()
    def look_up(self) -> None:
        self.check(self.some_chain())

    def check(self, chain: tuple[int, ...]) -> None:
        global operations
        operations += 1
        keys = self.keys(chain)
        limit = self.rng.randint(0, len(chain) + 2)
        wanted = []
        for i in range(min(limit, len(chain))):
            page = self.page_of.get(chain[: i + 1])
            if page is None:
                break
            wanted.append(page)
        assert self.index.longest(keys, limit).tolist() == wanted
        assert self.index.find(keys[-KEY_BYTES:]) == self.page_of.get(chain)
        assert len(self.index) == len(self.page_of)


def test_random_operations() -> None:
    run_state_machine_as_test(IndexMachine, settings=settings(max_examples=290, stateful_step_count=50))
    assert operations >= 10_000


@given(st.sets(st.integers(0, 9)), st.integers(0, 9), st.integers(0, 9))
def test_tail_needs_every_page(known: set[int], end: int, num: int) -> None:
    """Where only a window is retained, any page may be missing, and the last `num` must be there."""
    keys = chain_keys(b"root", list(range(10)), 1)
    index = PrefixIndex(20)
    for i in known:
        index.insert(keys[i * KEY_BYTES : (i + 1) * KEY_BYTES], 10 + i, np.zeros(0, np.int32))
    num = min(num, end)
    wanted = range(end - num, end)
    missing = [i for i in wanted if i not in known]
    assert index.gap(keys, end, num) == max(missing, default=-1)
    if not missing:
        assert index.tail(keys, end, num).tolist() == [10 + i for i in wanted]


def test_a_page_has_one_key() -> None:
    index, path = PrefixIndex(4), np.array([3], np.int32)
    index.insert(b"one", 3, path)
    with pytest.raises(AssertionError, match=r"^two keys for one page"):
        index.insert(b"other", 3, path)
    assert (index.find(b"one"), index.find(b"other")) == (3, None)


def test_what_is_found_stays_as_it_is() -> None:
    """A result is a copy: the table it came from may go on changing."""
    index, path = PrefixIndex(4), np.array([3, 0], np.int32)
    key = chain_keys(b"root", [1], 1)
    index.insert(key, 3, path)
    found = index.longest(key, 1)
    path[:] = 9
    assert found.tolist() == [3]
