"""Finding pages again by what they hold.

A page is known by a key that covers every token up to its end:

    spec = SHA-256 over what the model and its cache look like (`spec_digest`)
    root = SHA-256(spec | salt), and of converted entries SHA-256(SHA-256(spec, provenance) | salt)
    key  = SHA-256(key of the page before, or root | token ids as little-endian u32)

Entries of draft layers depend on the tokens that follow, too, so where a group has some its pages are known under

    ahead = SHA-256(key | the next token ids, as many as the group looks ahead)

Bytes are canonical, so keys agree between processes and machines; Python's `hash` and pickle play no part.

Design of the index. Where every token is retained, eviction removes a page only after all pages that continue it
(`core/kv/evict.py`), and whoever holds a page holds all before it. So "page i is here" implies "pages 0 .. i are
here", and the longest known prefix is found by bisection: 13 look-ups for 128K tokens. With each page the index keeps
the block table of the sequence that filled it, whose first i + 1 entries are that prefix: no walk is needed to
collect the pages. Where only the last W tokens are retained neither holds, and pages are looked up one by one, which
is at most W tokens' worth from a boundary that fits.

The brute-force twin (tests/core/kv) walks keys from the start.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from core.kv.pool import Pages

KEY_BYTES = 32


def spec_digest(*parts: str) -> bytes:
    """Identity of what fills a cache: model, groups, layout, shard. The same parts, the same digest."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.digest()


def root_key(spec: bytes, salt: str, provenance: str = "") -> bytes:
    """Start of every chain of one tenant: chains with different salts never meet, nor do those of entries that were
    computed here and those that were converted from another cache (`provenance`), or rest on such."""
    spec = spec_digest(spec.hex(), provenance) if provenance else spec
    return hashlib.sha256(spec + salt.encode()).digest()


def chain_keys(parent: bytes, token_ids: Sequence[int], page_tokens: int) -> bytes:
    """Keys of the full pages of `token_ids`, which continue the page with key `parent`. 32 bytes each."""
    raw = _packed(token_ids[: len(token_ids) // page_tokens * page_tokens])
    step = 4 * page_tokens
    keys = []
    for start in range(0, len(raw), step):
        parent = hashlib.sha256(parent + raw[start : start + step]).digest()
        keys.append(parent)
    return b"".join(keys)


def ahead_keys(keys: bytes, token_ids: Sequence[int], page_tokens: int, num: int, first: int = 0) -> bytes:
    """Keys that cover the `num` tokens after each page, too, as far as `token_ids` has these: of `keys` from page
    `first` on. The first of `token_ids` is the first of page 0."""
    end = min(len(keys) // KEY_BYTES, (len(token_ids) - num) // page_tokens)
    following = (token_ids[(i + 1) * page_tokens : (i + 1) * page_tokens + num] for i in range(first, end))
    pairs = zip(range(first, end), following, strict=True)
    return b"".join(hashlib.sha256(_key_at(keys, i) + _packed(ids)).digest() for i, ids in pairs)


def _packed(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


class PrefixIndex:
    """Key -> page, for the pages of one group."""

    def __init__(self, num_pages: int) -> None:
        self._page: dict[bytes, int] = {}
        self._key: list[bytes | None] = [None] * num_pages
        self._path: list[Pages | None] = [None] * num_pages

    def __len__(self) -> int:
        return len(self._page)

    def find(self, key: bytes) -> int | None:
        """The page with this key."""
        return self._page.get(key)

    def insert(self, key: bytes, page: int, path: Pages) -> None:
        """Make `page` known. `path` is the block table it ends; its entries up to there never change."""
        assert key not in self._page, "two pages under one key"
        assert self._key[page] is None, "two keys for one page"
        self._page[key] = page
        self._key[page] = key
        self._path[page] = path

    def forget(self, page: int) -> bytes:
        """Make `page` unknown; returns its key."""
        key = self._key[page]
        assert key is not None, "a page that is not known cannot be forgotten"
        del self._page[key]
        self._key[page] = None
        self._path[page] = None
        return key

    def longest(self, keys: bytes, limit: int) -> Pages:
        """Pages of the longest known prefix of `keys`, at most `limit` pages. Where all tokens are retained."""
        low, high = 0, min(limit, len(keys) // KEY_BYTES)
        last: int | None = None
        while low < high:
            middle = (low + high + 1) // 2
            page = self._page.get(keys[(middle - 1) * KEY_BYTES : middle * KEY_BYTES])
            if page is None:
                high = middle - 1
            else:
                low, last = middle, page
        if last is None:
            return np.zeros(0, np.int32)
        path = self._path[last]
        assert path is not None
        return path[:low].copy()

    def tail(self, keys: bytes, end: int, num: int) -> Pages:
        """The `num` pages that end at boundary `end`; all are known."""
        return np.array([self._page[_key_at(keys, i)] for i in range(end - num, end)], np.int32)

    def gap(self, keys: bytes, end: int, num: int) -> int:
        """The last of the `num` positions before boundary `end` whose page is not known; -1 if all are."""
        for i in range(end - 1, end - num - 1, -1):
            if _key_at(keys, i) not in self._page:
                return i
        return -1


def _key_at(keys: bytes, position: int) -> bytes:
    return keys[position * KEY_BYTES : (position + 1) * KEY_BYTES]
