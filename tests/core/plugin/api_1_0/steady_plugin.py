"""A device plugin as vendors wrote them for API 1.0, with all that this version had. FROZEN: never to be changed.

What it computes, it computes on the host. Copies land when they are waited for, and no sooner; weights are packed its
own way, and so is the KV cache; steps come in few shapes, each of which is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from core.kernels.reference.kv import KVLayout, Plane
from core.kernels.row import Implementation
from core.plugin import (
    Device,
    DeviceFacts,
    Event,
    Memory,
    Need,
    Peaks,
    ShapePolicy,
    Support,
    Unavailable,
    hookimpl,
)

API = (1, 0)
GIB = 2**30


class Copy(Event):
    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self._dst, self._src, self._landed = dst, src.clone(), False

    def wait(self) -> None:
        if not self._landed:
            self._dst.copy_(self._src)
            self._landed = True

    def synchronize(self) -> None:
        self.wait()


class Steady(Device):
    compiled: int = 0
    loaded: int = 0

    def probe(self) -> DeviceFacts | Unavailable:
        if not torch.__version__:
            return Unavailable("no torch")
        return DeviceFacts(
            name="steady",
            torch_device_type="cpu",
            arch="steady 1.0",
            count=1,
            memory_bytes=GIB,
            dtypes=("float32", "bfloat16"),
            host_memory=True,
            accelerator=True,
            implicit=False,
            uses_weights=True,
            claims=(),
            torch_extension=None,
            shapes=ShapePolicy(tokens=(8, 64), seqs=(4,), blocks=(16,)),
            max_depth=1,
            peaks=Peaks(float32=None, bfloat16=None, float16=None, bytes_per_s=None),
        )

    def open(self, index: int) -> torch.device:
        assert index == 0
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(free_bytes=GIB // 2, total_bytes=GIB)

    def synchronize(self) -> None:
        pass

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    @contextmanager
    def loading(self) -> Iterator[None]:
        yield
        Steady.loaded += 1

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return Copy(dst, src)

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return Copy(dst, src)

    def record(self) -> Event:
        return Event()

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def collective_backend(self) -> str:
        return "gloo"

    def keep(self, value):
        return value

    def compile(self, function, key, given):
        Steady.compiled += 1
        assert isinstance(key, tuple)
        assert isinstance(given, tuple)
        return function


def rms_norm(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    return F.rms_norm(x, w.shape, w, eps)


def pack_weight(w: torch.Tensor, *, scheme: str = "dense") -> torch.Tensor:
    assert scheme == "dense"
    return w.t().contiguous()


def linear(x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, handle.t(), bias)


def kv_layout(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """One plane [P, K or V, H, page, D]."""
    plane = Plane(dtype, (0, 2, num_kv_heads, page_tokens, head_size), 0)
    size = {"float32": 4, "bfloat16": 2}[dtype]
    return KVLayout((plane,), 2 * num_kv_heads * page_tokens * head_size * size, f"steady-{dtype}", kv_error=0.0)


def kv_write(k, v, planes, slots, *, page_tokens):
    [plane] = planes
    slots = slots.clamp(min=0).long()
    page, offset = slots // page_tokens, slots % page_tokens
    plane[page, 0, :, offset] = k
    plane[page, 1, :, offset] = v
    return planes


def kv_gather(planes, pages):
    k, v = planes[0][pages].unbind(-4)
    return k.transpose(-2, -3), v.transpose(-2, -3)


@hookimpl
def core_device() -> Device:
    return Steady()


@hookimpl
def core_kernels(facts: DeviceFacts) -> list[Implementation]:
    support = Support(
        dtypes=frozenset(facts.dtypes),
        head_sizes=None,
        page_sizes=None,
        schemes=None,
        max_n=None,
        max_k=None,
        max_seqs=4096,
        max_tokens=65536,
        graph_safe=True,
        batch_invariant=False,
    )
    need = Need(
        dtype="float16",
        head_size=64,
        page_tokens=16,
        n=8,
        k=8,
        scheme="dense",
        max_seqs=1,
        max_tokens=1,
        batch_invariant=False,
    )
    assert support.refuses(need) is not None
    assert support.refuses(Need(dtype="float32")) is None
    dense = Support(dtypes=support.dtypes, schemes=frozenset({"dense"}))
    paged = Support(dtypes=support.dtypes, page_sizes=frozenset({16, 64}))
    return [
        Implementation("rms_norm", rms_norm, "steady", support),
        Implementation("linear", linear, "steady", dense, adopted=False),
        Implementation("pack_weight", pack_weight, "steady", dense),
        Implementation("kv_layout", kv_layout, "steady", paged),
        Implementation("kv_write", kv_write, "steady", paged),
        Implementation("kv_gather", kv_gather, "steady", paged),
    ]
