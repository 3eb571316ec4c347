"""Principle 3: between kernels a step does nothing but take views. Every operator that torch executes is watched."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.foretell import Foretell
from core.engine.front import Front
from core.engine.step_function import StepFunction
from core.model.layers import GatedMLP
from core.request import SamplingParams, Structured
from core.speculate.following import Following
from tests.core.speculate.random_heads import write_heads
from tests.plugins import BARE_PLUGIN, install_hostile, install_plugin

VIEWS = {"aten.alias", "aten.expand", "aten.slice", "aten.view"}
"""All that a step may do by itself. A name added here must be a view: `test_views_are_views`."""


class Watch(TorchDispatchMode):
    """Counts operators by name, except those inside of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.num_calls = 0
        self._inside = 0

    def tap(self, row: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            self._inside += 1
            try:
                return kernel(*args, **kwargs)
            finally:
                self._inside -= 1

        return call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._inside:
            self.seen[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def trace(monkeypatch: pytest.MonkeyPatch, model: Path, **options: Any) -> Watch:
    """Serve prompts in chunks beside each other, greedily and not, one with a grammar, with prefix hits."""
    watch = Watch()

    def watched(half: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with watch:
                return half(*args)

        return run

    for owner, part in ((StepFunction, "forward"), (StepFunction, "draw"), (Foretell, "__call__")):
        monkeypatch.setattr(owner, part, watched(getattr(owner, part)))
    settings = {"dtype": "float32", "fallback": "allow", "num_kv_blocks": 40, "max_num_batched_tokens": 90, **options}
    engine = Engine(EngineConfig(model=str(model), **settings), tap=watch.tap)
    front, rng = Front(engine.info(), []), random.Random(1)
    prompt = [rng.randrange(384) for _ in range(140)]
    for i, length in enumerate((140, 20, 139, 1)):
        structured = Structured("regex", "[a-z]{40}") if i == 3 else None
        sampling = SamplingParams(temperature=i % 2, top_k=5, top_p=0.9, max_tokens=4, structured=structured)
        engine.add(front.request(prompt[:length], sampling, request_id=str(i)))
    outputs = []
    while engine.busy:
        outputs += engine.step()
    engine.close()
    assert [o.error for o in outputs if o.error] == []
    assert sum(len(o.new_ids) for o in outputs) == 16
    return watch


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("device", ["cpu", "bare", "hostile"])
def test_a_step_is_kernels_and_views(
    device: str, depth: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    if device == "bare":
        install_plugin(monkeypatch, tmp_path / "bare", "bare", BARE_PLUGIN)
    if device == "hostile":
        install_hostile(monkeypatch, tmp_path / "hostile")
    watch = trace(monkeypatch, tiny_llama_dir, device=device, pipeline_depth=depth)
    assert watch.num_calls > 100
    assert set(watch.seen) <= VIEWS, watch.seen - Counter(VIEWS)
    assert watch.seen, "the watch saw nothing at all"


@pytest.mark.parametrize("drafter", ["mtp", "model"])
def test_what_foretells_is_kernels_and_views(
    drafter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    path = write_heads(tmp_path / "heads", tiny_llama_dir, 2) if drafter == "mtp" else tiny_llama_dir
    monkeypatch.setattr(Following, "is_lost", lambda *_: False)  # times vary, and are not what is tested
    plain = trace(monkeypatch, tiny_llama_dir, device="cpu")
    watch = trace(monkeypatch, tiny_llama_dir, device="cpu", speculative=f"{drafter}:{path}:2")
    assert set(watch.seen) <= VIEWS, watch.seen - Counter(VIEWS)
    assert watch.num_calls > 1.5 * plain.num_calls, "it was not seen"


def test_a_stray_operator_is_seen(monkeypatch: pytest.MonkeyPatch, tiny_llama_dir: Path) -> None:
    """What a layer computes on its own, and values that the host reads from the device."""
    layer = GatedMLP.__call__

    def stray(self: GatedMLP, w: Any, x_TE: torch.Tensor) -> torch.Tensor:
        y_TE = layer(self, w, x_TE) + 1
        return y_TE if y_TE[0, 0].item() else x_TE

    monkeypatch.setattr(GatedMLP, "__call__", stray)
    watch = trace(monkeypatch, tiny_llama_dir, device="cpu")
    assert "aten.add" in watch.seen
    assert {"aten.item", "aten._local_scalar_dense"} & set(watch.seen), watch.seen


def test_views_are_views() -> None:
    """Each listed operator returns an alias of its argument and writes nothing."""
    for name in VIEWS:
        packet = getattr(torch.ops.aten, name.removeprefix("aten."))
        for overload in packet.overloads():
            schema = getattr(packet, overload)._schema
            aliases = [r.alias_info for r in schema.returns if r.alias_info]
            # Some views have overloads for Python lists, which are no operators on tensors.
            if all("Tensor" in str(r.type) for r in schema.returns):
                assert aliases, schema
                assert not any(alias.is_write for alias in aliases), schema
