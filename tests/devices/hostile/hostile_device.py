"""A deliberately impolite device on CPU memory: what core may not take for granted.

- steps come in a few bucket shapes only, and a compiled function is refused inputs that moved
- what it keeps, and what compiled functions return, nobody else can compute with; what was given away is gone
- KV pages hold 64 tokens, in INT8 with scales, in a layout of its own
- fresh memory is full of NaN and of the largest numbers
- copies land when they are waited for, not before
"""

from __future__ import annotations

import dataclasses

import torch

from core.kernels.reference.kv import KVLayout, Plane
from core.kernels.row import Implementation
from core.plugin import Device, DeviceFacts, Event, Memory, ShapePolicy, Support, hookimpl

API = (1, 0)
PAGE = 64
SUPPORT = Support(dtypes=frozenset({"float32", "bfloat16"}), page_sizes=frozenset({PAGE}))


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max, dtype=dtype)


class LateCopy(Event):
    """Lands when waited for, and reads its source only then."""

    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self._copy: tuple[torch.Tensor, torch.Tensor] | None = (dst, src)

    def wait(self) -> None:
        if self._copy:
            dst, src = self._copy
            dst.copy_(src)
            self._copy = None

    synchronize = wait


class Kept:
    """A tensor that only compiled functions and copies get at."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.tensor = tensor.shape, tensor.dtype, tensor

    def take(self) -> torch.Tensor:
        assert self.tensor is not None, "this was given away"
        return self.tensor


def mapped(tree, kind, change):
    """A tree with every `kind` in it changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {name: mapped(value, kind, change) for name, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, kind, change) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, kind, change) for value in tree)
    if dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree)]
        return dataclasses.replace(tree, **{name: mapped(getattr(tree, name), kind, change) for name in names})
    return tree


def addresses(args) -> list[int]:
    """Of a step's inputs, without the extras."""
    found: list[int] = []
    inputs = [dataclasses.replace(a, extras=None) for a in args if dataclasses.is_dataclass(a)]
    mapped(inputs, torch.Tensor, lambda tensor: found.append(tensor.data_ptr()))
    return found


def give_away(kept: Kept) -> None:
    kept.tensor = None


class HostileDevice(Device):
    def probe(self) -> DeviceFacts:
        return DeviceFacts(
            name="hostile",
            torch_device_type="cpu",
            arch="a test",
            count=1,
            memory_bytes=1 << 28,
            dtypes=("float32", "bfloat16"),
            host_memory=True,
            accelerator=False,
            implicit=False,
            shapes=ShapePolicy(tokens=(4, 16, 96), seqs=(2, 8), blocks=(1, 2, 4, 8)),
        )

    def open(self, index: int) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(1 << 28, 1 << 28)

    def synchronize(self) -> None:
        pass

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return poisoned(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return poisoned(shape, dtype)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return LateCopy(dst, src)

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        src = src.take() if isinstance(src, Kept) else src
        return LateCopy(dst, src.clone())  # the device reads in order; the host sees it late

    def keep(self, value):
        return mapped(value, torch.Tensor, Kept)

    def compile(self, function, key, given):
        if key[0] == "forward":
            self.check_buckets(*key[1:])
        first: list[int] = []

        def run(*args):
            now = addresses(args)
            first[:] = first or now
            assert first == now, "inputs of a compiled function moved"
            results = function(*mapped(args, Kept, Kept.take))
            for position in given:
                mapped(args[position], Kept, give_away)
            return mapped(results, torch.Tensor, Kept)

        return run

    def check_buckets(self, tokens, seqs, blocks, logits):
        policy = self.probe().shapes
        assert tokens in policy.tokens
        assert seqs in policy.seqs
        assert blocks in policy.blocks
        assert logits in policy.seqs


def kv_layout(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """One plane of codes [K or V, P, H, D, page], one of scales [P, K or V, H, page]."""
    codes = Plane("int8", (2, 0, num_kv_heads, head_size, page_tokens), 1)
    scales = Plane("float32", (0, 2, num_kv_heads, page_tokens), 0)
    num_bytes = 2 * num_kv_heads * page_tokens * (head_size + 4)
    # Half a code of 127, and what scale and quotient lose in float32.
    return KVLayout((codes, scales), num_bytes, f"hostile-int8-{dtype}", kv_error=(1 + 2**-12) / 254)


class KV:
    """Knows the dtype that the model computes in, which `kv_gather` must give back."""

    dtype = torch.float32

    def write(self, k, v, planes, slots, *, page_tokens):
        codes, scales = planes
        KV.dtype = k.dtype
        slots = slots.clamp(min=0).long()
        page, offset = slots // page_tokens, slots % page_tokens
        for which, x in enumerate((k.float(), v.float())):
            scale = x.abs().amax(-1).clamp(min=2**-126) / 127
            codes[which, page, :, :, offset] = (x / scale[..., None]).round().to(torch.int8)
            scales[page, which, :, offset] = scale
        return planes

    def gather(self, planes, pages):
        codes, scales = planes
        out = []
        for which in (0, 1):
            x = codes[which][pages].float() * scales[pages, which][..., None, :]
            most = torch.finfo(KV.dtype).max  # 127 times its 127th part may be rounded to infinity
            out.append(x.movedim(-1, -3).clamp(-most, most).to(KV.dtype))
        return tuple(out)


@hookimpl
def core_device() -> Device:
    return HostileDevice()


@hookimpl
def core_kernels() -> list[Implementation]:
    kv = KV()
    rows = {"kv_layout": kv_layout, "kv_write": kv.write, "kv_gather": kv.gather}
    return [Implementation(row, kernel, "hostile", SUPPORT) for row, kernel in rows.items()]
