"""KV entries that leave an engine, and those that come in from another one.

Entries computed by another device, or kept in another format, are not what this one would have computed: they are known
under keys of their own, which begin with their provenance. Only requests that name it find them, and what is computed
on top of them goes under such keys, too. Refuses what does not fit this model. Owns the names that were imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from core.engine.entries import KVEntries, Origin
from core.engine.executor import Executor, Loaded
from core.errors import CapacityError, RequestError
from core.kernels.dtypes import TORCH_DTYPES
from core.kv.cache import KVCache, Lease
from core.kv.prefix import ahead_keys, chain_keys, root_key
from core.model.digest import digest_of
from core.request import Request


class Exchange:
    """Exports and imports for one engine; `spec` is the identity of its cache."""

    def __init__(self, cache: KVCache, executor: Executor, loaded: Loaded, spec: bytes) -> None:
        plan = loaded.plan
        self._cache, self._executor, self._plan, self._spec = cache, executor, plan, spec
        self._vocab_size = loaded.vocab_size
        self._loaded = loaded
        self._provenances: set[str] = set()

    @cached_property
    def _own(self) -> Origin:
        """Made when it is first asked for: some of every weight is read."""
        plan = self._plan
        return Origin(
            weights=digest_of(self._loaded.source),
            shape=self._loaded.shape,
            page_tokens=plan.page_tokens,
            dtype=plan.dtype,
            device=plan.device,
            kv_formats=list(self._loaded.formats),
            spec=self._spec.hex(),
        )

    def check(self, request: Request) -> None:
        """Raises: RequestError for a provenance that nothing was imported under."""
        name = request.kv_provenance
        if name and name not in self._provenances:
            have = ", ".join(sorted(self._provenances)) or "nothing was imported"
            raise RequestError(
                f"kv_provenance is {name!r}: choose what import_kv returned ({have}), or leave it out", "kv_provenance"
            )

    def export(self, token_ids: Sequence[int]) -> KVEntries:
        """Entries of the longest prefix of these ids that was computed here and is cached, in whole pages.

        Raises: RequestError where there is none, and where entries cannot be exported.
        """
        self._check_able("export_kv")
        cache = self._cache
        keys, ahead = self._keys(token_ids)
        lease = cache.lease(keys, len(token_ids), ahead)
        try:
            if not lease.num_tokens:
                raise RequestError(
                    f"no whole page of these {len(token_ids)} tokens is cached: generate with them first",
                    "prompt",
                )
            pages = [each[each != 0].tolist() for each in lease.pages]
            groups = self._executor.run(lambda runner: runner.read_pages(pages))
        finally:
            cache.cancel(lease)
        end = lease.num_tokens
        return KVEntries(list(token_ids[:end]), self._own, groups, list(token_ids[end : end + cache.lookahead]))

    def load(self, entries: KVEntries) -> str:
        """Make entries findable for requests that name their provenance, which is returned.

        Raises: RequestError when they do not fit; CapacityError when there are not enough pages.
        """
        self._check_able("import_kv")
        token_ids, groups = self._fitted(entries)
        provenance = entries.origin.provenance
        keys, ahead = self._keys(entries.token_ids + entries.following, provenance)
        lease = self._cache.lease(keys, len(token_ids), ahead)
        self._load(lease, keys, ahead, token_ids, groups)
        self._provenances.add(provenance)
        return provenance

    def _keys(self, token_ids: Sequence[int], provenance: str = "") -> tuple[bytes, bytes]:
        """Those of the pages, and those that look ahead."""
        page, root = self._cache.page_tokens, root_key(self._spec, "", provenance)
        keys = chain_keys(root, token_ids, page)
        return keys, ahead_keys(keys, token_ids, page, self._cache.lookahead)

    def _load(self, lease: Lease, keys: bytes, ahead: bytes, token_ids: list[int], groups: list[torch.Tensor]) -> None:
        """What the lease lacks."""
        cache = self._cache
        num_pages = len(token_ids) // cache.page_tokens
        missing = num_pages - lease.num_tokens // cache.page_tokens
        if not missing:
            cache.cancel(lease)
            return
        if not cache.can_take(missing):
            cache.cancel(lease)
            most = min(pool.num_available for pool in cache.pools)
            raise CapacityError(
                f"these entries take {missing} KV pages and {most} can be had: wait until requests have ended, "
                "or raise num_kv_blocks"
            )
        table, starts = cache.reopen(lease, len(token_ids))
        try:
            pages = [table.pages[g][start:num_pages].tolist() for g, start in enumerate(starts)]
            parts = [group[:, :, group.shape[2] - len(p) :] for group, p in zip(groups, pages, strict=True)]
            self._executor.run(lambda runner: runner.write_pages(pages, parts))
            cache.commit(table, keys, num_pages, token_ids, ahead=ahead)
        finally:
            cache.close(table)

    def _check_able(self, call: str) -> None:
        plan = self._plan
        if not plan.prefix_caching:
            raise RequestError(f"{call} needs the prefix cache, which is off: leave enable_prefix_caching on")
        if plan.tensor_parallel_size > 1:
            raise RequestError(
                f"{call} needs all heads in one rank, and tensor_parallel_size is {plan.tensor_parallel_size}: "
                "use an engine with one"
            )
        if not self._executor.runner.can_exchange:
            raise RequestError(f"{call} cannot read the form in which device {plan.device} keeps KV pages")

    def _fitted(self, entries: KVEntries) -> tuple[list[int], list[torch.Tensor]]:
        """Ids and entries in pages as they are here. Raises: RequestError naming what does not fit."""
        theirs, own = entries.origin, self._own
        for name in sorted({*theirs.shape, *own.shape}):
            if theirs.shape.get(name) != own.shape.get(name):
                raise _misfit(name, theirs.shape.get(name), own.shape.get(name))
        for name in ("weights", "dtype"):
            if getattr(theirs, name) != getattr(own, name):
                raise _misfit(name, getattr(theirs, name), getattr(own, name))
        if not all(0 <= i < self._vocab_size for i in entries.token_ids + entries.following):
            raise RequestError(f"entries have token ids outside of the vocabulary of {self._vocab_size}", "entries")
        self._check_tensors(entries)
        if theirs.page_tokens == own.page_tokens:
            return entries.token_ids, entries.groups
        if self._cache.windowed:
            raise _misfit("page size, beside a window,", theirs.page_tokens, own.page_tokens)
        return self._repaged(entries)

    def _check_tensors(self, entries: KVEntries) -> None:
        page, dtype = entries.origin.page_tokens, TORCH_DTYPES[self._own.dtype]
        num_pages = len(entries.token_ids) // page if page > 0 else 0
        if not num_pages or len(entries.token_ids) % page or len(entries.groups) != len(self._cache.groups):
            raise RequestError(f"entries have {len(entries.token_ids)} ids: not whole pages of {page}", "entries")
        for g, (group, tensor) in enumerate(zip(self._cache.groups, entries.groups, strict=True)):
            seen = num_pages if group.retain is None else min(num_pages, -(-(group.retain - 1) // page))
            shape = (group.num_layers, 2, seen, page, group.num_kv_heads, group.head_size)
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise _misfit(f"group {g}", f"{tuple(tensor.shape)} {tensor.dtype}", f"{shape} {dtype}")

    def _repaged(self, entries: KVEntries) -> tuple[list[int], list[torch.Tensor]]:
        """In pages of this cache's size; what does not fill the last one is left out."""
        page = self._own.page_tokens
        end = len(entries.token_ids) // page * page
        if not end:
            raise RequestError(f"entries have {len(entries.token_ids)} tokens, and a page holds {page}", "entries")
        tokens = [group.flatten(2, 3)[:, :, :end] for group in entries.groups]
        return entries.token_ids[:end], [t.reshape(*t.shape[:2], -1, page, *t.shape[3:]) for t in tokens]


def _misfit(name: str, theirs: object, own: object) -> RequestError:
    return RequestError(f"{name} is {theirs} in these entries and must be {own}: export from an equal model", "entries")
