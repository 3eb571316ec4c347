"""Binding: which kernel serves each place in a model, decided once, before weights are loaded.

A layer asks for a row and says what it needs. The first implementation whose `Support` takes that is bound, else the
reference, composed from bound parts. The rows of the KV bundle come from one provider, because only it knows its
layout; what a provider leaves out there is composed from its own parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from core.errors import ConfigError, PluginError
from core.kernels.row import Implementation, Kernel, Row
from core.kernels.table import KV_BUNDLE, TABLE
from core.plan import Binding
from core.plugin.facts import Need
from core.plugin.hooks import API

REFERENCE = "reference"
_NATIVE, _ADOPTED = "native", "the reference, compiled"
_LAYOUT = ("kv_layout", "kv_write", "kv_gather")
_ATTENTION = ("attn_plan", "attn_paged")  # a plan is read by the kernel it was made for
Tap = Callable[[str, Kernel], Kernel]


class KernelSet:
    """The kernels of one model on one device.

    overrides   row -> provider or "reference", as asked for by the user
    kv_need     what the KV bundle must take; batch invariance and the limits of a step hold for every kernel
    tap         wraps each bound kernel, by row name: for tracing, profiling and fault injection
    head_sizes  of KV groups: the bundle must take each of them; none: that of `kv_need`
    """

    def __init__(
        self,
        implementations: Iterable[Implementation],
        overrides: Mapping[str, str],
        kv_need: Need,
        tap: Tap | None = None,
        head_sizes: Collection[int] = (),
    ) -> None:
        self._by_row: dict[str, list[Implementation]] = {name: [] for name in TABLE}
        for implementation in implementations:
            if implementation.row not in TABLE:
                raise PluginError(
                    f"{implementation.provider} supplies {implementation.row}: there is no such kernel in API "
                    f"{API[0]}.{API[1]}, which this core speaks: update core, or the plugin"
                )
            self._by_row[implementation.row].append(implementation)
        self._overrides = dict(overrides)
        self._tap = tap
        self._uses: Counter[tuple[str, str, str]] = Counter()
        self._kv_need = kv_need
        self._check_overrides()
        self._check_bundles()
        needs = [replace(kv_need, head_size=size) for size in sorted(head_sizes)] or [kv_need]
        self._kv_provider, self._kv_reason = self._choose_kv(needs)

    def bind(self, name: str, need: Need | None = None, **fixed: Any) -> Kernel:
        """The kernel for one place in the model; `fixed` are the arguments that stay the same there."""
        kernel = self._resolve(name, self._in_step(need or Need()), count=True)
        bound = partial(kernel, **fixed) if fixed else kernel
        return self._tap(name, bound) if self._tap else bound

    def has_native(self, name: str, need: Need) -> bool:
        """Whether an implementation takes `need`; where a provider was asked for, one of that provider."""
        asked = self._overrides.get(name)
        have = [i for i in self._by_row[name] if asked in (None, i.provider)]
        return any(i.support.refuses(self._in_step(need)) is None for i in have)

    def _in_step(self, need: Need) -> Need:
        """With what holds for every kernel."""
        step = self._kv_need
        return replace(need, batch_invariant=step.batch_invariant, max_seqs=step.max_seqs, max_tokens=step.max_tokens)

    def bindings(self) -> tuple[Binding, ...]:
        """Every row bound so far, with its provider and the reason."""
        return tuple(Binding(*key, uses) for key, uses in sorted(self._uses.items()))

    def missing_native(self) -> list[Binding]:
        """Bound rows that must be native in production and are not."""
        return [b for b in self.bindings() if TABLE[b.row].production and b.provider == REFERENCE]

    def _resolve(self, name: str, need: Need, count: bool) -> Kernel:
        row = TABLE[name]
        implementation, reason = self._choose(row, need)
        provider = implementation.provider if implementation else REFERENCE
        if count:
            self._uses[name, provider, reason] += 1
        if implementation:
            return implementation.kernel
        if need.batch_invariant and not row.batch_invariant:
            raise PluginError(
                f"batch_invariant was asked for, and there is no batch-invariant kernel for {name} ({reason}): "
                "leave it out, or choose a device and weights that have one, such as cpu with dequantised weights"
            )
        parts = {part: self._resolve(part, need, count=False) for part in row.parts}
        return partial(row.reference, **parts) if parts else row.reference

    def _choose(self, row: Row, need: Need) -> tuple[Implementation | None, str]:
        asked = self._overrides.get(row.name)
        if row.bundle == "kv":
            return self._choose_in_bundle(row.name, need)
        if row.reader:
            return self._choose_for_reader(row.name, TABLE[row.reader], need)
        if asked == REFERENCE:
            return None, "asked for"
        reasons = []
        for implementation in self._by_row[row.name]:
            refusal = implementation.support.refuses(need)
            if asked and implementation.provider != asked:
                continue
            if refusal is None:
                return implementation, "asked for" if asked else _ADOPTED if implementation.adopted else _NATIVE
            reasons.append(f"{implementation.provider}: {refusal}")
        if asked:
            raise ConfigError(f"--kernel {row.name}={asked}: {'; '.join(reasons)}; remove it to use what fits")
        return None, "; ".join(reasons) or "no implementation"

    def _choose_for_reader(self, name: str, reader: Row, need: Need) -> tuple[Implementation | None, str]:
        """What the provider of `reader` has for this row; it takes the reference's result where it has nothing."""
        chosen, reason = self._choose(reader, need)
        own = self._of(chosen.provider, name) if chosen else []
        return next((i for i in own if i.support.refuses(need) is None), None), f"for {reader.name}, {reason}"

    def _check_overrides(self) -> None:
        for name, provider in self._overrides.items():
            if name not in TABLE:
                raise ConfigError(f"--kernel {name}={provider}: there is no such kernel; `core plan` lists them")
            if reader := TABLE[name].reader:
                raise ConfigError(f"--kernel {name}={provider}: only {reader} reads it; ask for {reader}={provider}")
            have = [REFERENCE] + [i.provider for i in self._by_row[name]]
            if provider not in have:
                raise ConfigError(f"--kernel {name}={provider}: choose among {', '.join(dict.fromkeys(have))}")

    # The KV bundle

    def _choose_kv(self, needs: list[Need]) -> tuple[str | None, str]:
        """The provider of the layout, which takes all `needs`; None is the reference."""
        wanted = {n: p for n, p in self._overrides.items() if n in KV_BUNDLE and (n in _LAYOUT or p != REFERENCE)}
        asked = set(wanted.values())
        if len(asked) > 1:
            raise ConfigError(
                f"--kernel: {', '.join(sorted(wanted))} are of one bundle and come from one provider, "
                f"not from {' and '.join(sorted(asked))}"
            )
        if asked == {REFERENCE}:
            return None, "asked for"
        reasons = []
        for provider in dict.fromkeys(i.provider for i in self._by_row["kv_layout"]):
            if asked and provider not in asked:
                continue
            refusals = filter(None, (self._refusal(provider, KV_BUNDLE, need) for need in needs))
            refusal = next(refusals, None)
            if refusal is None:
                return provider, _NATIVE
            reasons.append(f"{provider}: {refusal}")
        if asked:
            name, provider = next(iter(wanted.items()))
            raise ConfigError(f"--kernel {name}={provider}: {'; '.join(reasons)}; remove it to use what fits")
        return None, "; ".join(reasons) or "no implementation"

    def _of(self, provider: str, name: str) -> list[Implementation]:
        return [i for i in self._by_row[name] if i.provider == provider]

    def _refusal(self, provider: str, names: Iterable[str], need: Need) -> str | None:
        """Why the provider's implementations of these rows do not all take `need`; of several for a row, one must."""
        for name in names:
            refusals = [i.support.refuses(need) for i in self._of(provider, name)]
            if refusals and all(refusals):
                return refusals[0]
        return None

    def _check_bundles(self) -> None:
        """Whoever supplies a part of the bundle supplies what knows the layout, and reads its own plan."""
        have: dict[str, set[str]] = {}
        for name in KV_BUNDLE:
            for implementation in self._by_row[name]:
                have.setdefault(implementation.provider, set()).add(name)
        for provider, names in have.items():
            for name in _LAYOUT:
                if name not in names:
                    raise PluginError(
                        f"{provider} supplies {min(names)} without {name}: "
                        f"{', '.join(_LAYOUT)} know the layout that it rests on; supply all of them"
                    )
            if "attn_plan" in names and "attn_paged" not in names:
                raise PluginError(f"{provider} supplies attn_plan without attn_paged: nothing else can read its plan")
        plan, attend = (self._overrides.get(name) for name in ("attn_plan", "attn_paged"))
        if plan and (plan == REFERENCE) != (attend == REFERENCE):
            raise ConfigError(
                f"--kernel attn_plan={plan}: a plan is read by the attn_paged it was made for: "
                f"ask for attn_paged={plan} too"
            )

    def _choose_in_bundle(self, name: str, need: Need) -> tuple[Implementation | None, str]:
        together = _ATTENTION if name in _ATTENTION else (name,)
        asked = self._overrides.get(together[-1])
        if asked == REFERENCE and name not in _LAYOUT:
            return None, "asked for"
        provider = self._kv_provider
        if provider is None:
            return None, self._kv_reason
        refusal = self._refusal(provider, together, need)
        if refusal and name in self._overrides:
            raise ConfigError(f"--kernel {name}={provider}: {provider}: {refusal}; remove it to use what fits")
        for implementation in self._of(provider, name):
            if refusal is None and implementation.support.refuses(need) is None:
                reason = _ADOPTED if implementation.adopted else self._kv_reason
                return implementation, "asked for" if asked else reason
        if name in _LAYOUT:
            raise PluginError(f"{provider} refuses {name} for a need that its kv_layout takes: {need}")
        return None, f"composed from parts of {provider}" + (f", {refusal}" if refusal else "")

    def kv_page_sizes(self) -> frozenset[int] | None:
        """Page sizes that the KV bundle's provider takes; None: any."""
        if self._kv_provider is None:
            return None
        common: frozenset[int] | None = None
        for name in KV_BUNDLE:
            sizes = [i.support.page_sizes for i in self._of(self._kv_provider, name)]
            if sizes and None not in sizes:
                some = frozenset[int]().union(*(s for s in sizes if s is not None))
                common = some if common is None else common & some
        if common is not None and not common:
            raise PluginError(f"the KV kernels of {self._kv_provider} have no page size in common: mend their Support")
        return common
