"""Binding: which kernel serves each place in a model, decided once, before weights are loaded.

A layer asks for a row and says what it needs. The first implementation whose `Support` takes that is bound, else the
reference, composed from bound parts. The rows of the KV bundle come from one provider, because only it knows its
layout; what a provider leaves out there is composed from its own parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from core.config import Binding
from core.errors import ConfigError, PluginError
from core.kernels.row import Implementation, Kernel, Row
from core.kernels.table import KV_BUNDLE, TABLE
from core.plugin.facts import Need

REFERENCE = "reference"
_NATIVE = "native"
Tap = Callable[[str, Kernel], Kernel]


class KernelSet:
    """The kernels of one model on one device.

    overrides   row -> provider or "reference", as asked for by the user
    tap         wraps each bound kernel, by row name: for tracing, profiling and fault injection
    """

    def __init__(
        self,
        implementations: Iterable[Implementation],
        overrides: Mapping[str, str],
        kv_need: Need,
        tap: Tap | None = None,
    ) -> None:
        self._by_row: dict[str, list[Implementation]] = {name: [] for name in TABLE}
        for implementation in implementations:
            if implementation.row not in TABLE:
                raise PluginError(f"{implementation.provider} supplies {implementation.row}: there is no such kernel")
            self._by_row[implementation.row].append(implementation)
        self._overrides = dict(overrides)
        self._tap = tap
        self._uses: Counter[tuple[str, str, str]] = Counter()
        self._check_overrides()
        self._kv_provider, self._kv_reason = self._choose_kv(kv_need)

    def bind(self, name: str, need: Need | None = None, **fixed: Any) -> Kernel:
        """The kernel for one place in the model; `fixed` are the arguments that stay the same there."""
        kernel = self._resolve(name, need or Need(), count=True)
        bound = partial(kernel, **fixed) if fixed else kernel
        return self._tap(name, bound) if self._tap else bound

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
        parts = {part: self._resolve(part, need, count=False) for part in row.parts}
        return partial(row.reference, **parts) if parts else row.reference

    def _choose(self, row: Row, need: Need) -> tuple[Implementation | None, str]:
        asked = self._overrides.get(row.name)
        if row.bundle == "kv":
            return self._choose_in_bundle(row.name, need)
        if asked == REFERENCE:
            return None, "asked for"
        reasons = []
        for implementation in self._by_row[row.name]:
            refusal = implementation.support.refuses(need)
            if asked and implementation.provider != asked:
                continue
            if refusal is None:
                return implementation, "asked for" if asked else _NATIVE
            reasons.append(f"{implementation.provider}: {refusal}")
        if asked:
            raise ConfigError(f"--kernel {row.name}={asked}: {'; '.join(reasons)}; remove it to use what fits")
        return None, "; ".join(reasons) or "no implementation"

    def _check_overrides(self) -> None:
        for name, provider in self._overrides.items():
            if name not in TABLE:
                raise ConfigError(f"--kernel {name}={provider}: there is no such kernel; `core plan` lists them")
            have = [REFERENCE] + [i.provider for i in self._by_row[name]]
            if provider not in have:
                raise ConfigError(f"--kernel {name}={provider}: choose among {', '.join(dict.fromkeys(have))}")

    # The KV bundle

    def _choose_kv(self, need: Need) -> tuple[str | None, str]:
        """The provider of the layout; None is the reference."""
        asked = {self._overrides[n] for n in ("kv_layout", "kv_write", "kv_gather") if n in self._overrides}
        if len(asked) > 1:
            raise ConfigError(
                f"--kernel: kv_layout, kv_write and kv_gather form a bundle, not {' and '.join(sorted(asked))}"
            )
        if asked == {REFERENCE}:
            return None, "asked for"
        reasons = []
        for layout in self._by_row["kv_layout"]:
            if asked and layout.provider not in asked:
                continue
            self._check_complete(layout.provider)
            refusals = [i.support.refuses(need) for i in self._of(layout.provider, KV_BUNDLE)]
            refusal = next((r for r in refusals if r), None)
            if refusal is None:
                return layout.provider, _NATIVE
            reasons.append(f"{layout.provider}: {refusal}")
        if asked:
            raise ConfigError(f"--kernel kv_layout={asked.pop()}: {'; '.join(reasons)}")
        return None, "; ".join(reasons) or "no implementation"

    def _of(self, provider: str, names: Iterable[str]) -> list[Implementation]:
        return [i for name in names for i in self._by_row[name] if i.provider == provider]

    def _check_complete(self, provider: str) -> None:
        have = {i.row for i in self._of(provider, KV_BUNDLE)}
        for name in ("kv_write", "kv_gather"):
            if name not in have:
                raise PluginError(
                    f"{provider} supplies kv_layout without {name}: only it knows its layout; supply both"
                )
        if "attn_plan" in have and "attn_paged" not in have:
            raise PluginError(f"{provider} supplies attn_plan without attn_paged: nothing else can read its plan")

    def _choose_in_bundle(self, name: str, need: Need) -> tuple[Implementation | None, str]:
        pair = "attn_paged" if name == "attn_plan" else name  # a plan is read by the kernel it was made for
        if self._overrides.get(pair) == REFERENCE and pair not in ("kv_layout", "kv_write", "kv_gather"):
            return None, "asked for"
        if self._kv_provider is None:
            return None, self._kv_reason
        for implementation in self._of(self._kv_provider, (name,)):
            refusal = implementation.support.refuses(need)
            if refusal is None:
                return implementation, self._kv_reason
        if name in ("kv_layout", "kv_write", "kv_gather"):
            raise PluginError(f"{self._kv_provider} refuses {name} for a need that its kv_layout takes: {need}")
        return None, f"composed from parts of {self._kv_provider}"

    def kv_page_sizes(self) -> frozenset[int] | None:
        """Page sizes that the KV bundle's provider takes; None: any."""
        if self._kv_provider is None:
            return None
        sizes = [
            i.support.page_sizes for i in self._of(self._kv_provider, KV_BUNDLE) if i.support.page_sizes is not None
        ]
        return frozenset.intersection(*sizes) if sizes else None
