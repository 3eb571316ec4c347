"""Layers that families are composed of.

A layer declares its parameters and binds its kernels when it is built; running it is calls of bound kernels with views
between them, and nothing else. Weights are an argument (`w`, by parameter name), so a step is a function of its inputs.

Legend: T tokens, S sequences, L logit rows, B blocks, H heads, D head size, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from core.model.spec import Shard
from core.plugin.facts import Need

if TYPE_CHECKING:  # families are looked up in processes that never load torch
    import torch

    from core.kernels.bind import KernelSet
    from core.kernels.row import Kernel

Weights = Mapping[str, Any]
Planes: TypeAlias = "tuple[torch.Tensor, ...]"


@dataclass(frozen=True)
class Source:
    """One checkpoint tensor.

    axis       along which ranks share it; None: every rank has all of it
    sections   rows of each projection, where the tensor joins several: ranks share each of them
    columns    from which on and before which columns are taken, of a tensor that is not shared; None: all
    """

    name: str
    axis: int | None = None
    sections: tuple[int, ...] = ()
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Param:
    """A parameter of this rank.

    shape    on this rank; rows past the end of the sources are zero
    sources  joined along axis 0
    packed   handed to `pack_weight` after loading
    scheme   form in which it is handed over; of a packed one alone
    make     computes it instead of reading it
    add      added to what is read, in float32, before it is rounded to the model's dtype
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...] = ()
    packed: bool = False
    scheme: str = "dense"
    make: Callable[[], torch.Tensor] | None = None
    add: float = 0.0


@dataclass
class Builder:
    """What layers are built with: kernels to bind, the rank's shard, and where parameters are declared.

    scheme   chooses the form of each packed parameter
    prefix   what the names of parameters and of checkpoint tensors begin with: for a second model beside a first one
    """

    kernels: KernelSet
    shard: Shard
    dtype: str
    page_tokens: int
    max_len: int
    process_group: Any = None
    scheme: Callable[[Param], str] = lambda param: "dense"
    params: dict[str, Param] = field(default_factory=dict)
    prefix: str = ""

    def param(self, param: Param) -> str:
        return self._declare(self._named(param))

    def _named(self, param: Param) -> Param:
        sources = tuple(replace(source, name=self.prefix + source.name) for source in param.sources)
        return replace(param, name=self.prefix + param.name, sources=sources)

    def _declare(self, param: Param) -> str:
        assert param.name not in self.params, param.name
        self.params[param.name] = param
        return param.name

    def weight(self, name: str, shape: tuple[int, int], sources: tuple[Source, ...]) -> tuple[str, Kernel]:
        """Declares a weight [N, K], in the form chosen for it, and binds the kernel that multiplies by it."""
        param = self._named(Param(name, shape, sources, packed=True))
        scheme = self.scheme(param)
        linear = self.kernels.bind("linear", self.need(n=shape[0], k=shape[1], scheme=scheme))
        return self._declare(replace(param, scheme=scheme)), linear

    def need(self, **more: Any) -> Need:
        return Need(dtype=self.dtype, **more)

    def split(self, count: int) -> int:
        """This rank's share of something that divides evenly; `resolve` has checked that it does."""
        assert count % self.shard.size == 0, (count, self.shard)
        return count // self.shard.size


class StepView(Protocol):
    """What a model reads of a step (`core.engine.step_input.StepInput`)."""

    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def logit_rows(self) -> torch.Tensor: ...
    @property
    def slots(self) -> Sequence[torch.Tensor]: ...


class Model(Protocol):
    """What a family's `build` returns.

    `plans` has the attention plan of each KV group; `kv` the planes of each layer, per group. Returns the logits of
    the step's logit rows, the normed hidden states of those rows, and the KV planes after the step.
    """

    def __call__(
        self, w: Weights, ids_T: torch.Tensor, step: StepView, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]]]: ...


class Layer(Protocol):
    """Hidden states in, hidden states out."""

    def __call__(self, w: Weights, x: torch.Tensor, /) -> torch.Tensor: ...


class Chain:
    """Layers one after another."""

    def __init__(self, *layers: Layer) -> None:
        self._layers = layers

    def __call__(self, w: Weights, x: torch.Tensor) -> torch.Tensor:
        for layer in self._layers:
            x = layer(w, x)
        return x


class Linear:
    """y = x W^T + b. `rows`: ranks share the output; `columns`: ranks share the input and sum their results.

    sources    checkpoint names of the projections that are joined, without ".weight"
    sections   rows of each projection, where the checkpoint has them joined in one tensor
    columns    of the checkpoint's tensor, where this is a part of it (see `Source`)
    """

    def __init__(
        self,
        b: Builder,
        name: str,
        sources: Sequence[str],
        n: int,
        k: int,
        *,
        split: str | None = None,
        bias: bool = False,
        sections: tuple[int, ...] = (),
        columns: tuple[int, int] | None = None,
    ) -> None:
        axis = {None: None, "rows": 0, "columns": 1}[split]
        n_here = b.split(n) if split == "rows" else n
        k_here = b.split(k) if split == "columns" else k
        weights = tuple(Source(f"{s}.weight", axis, sections, columns) for s in sources)
        self.weight, self._linear = b.weight(f"{name}.weight", (n_here, k_here), weights)
        self.bias = None
        if bias:
            # A sum over ranks must count the bias once, so with `columns` only rank 0 has it.
            biases = tuple(Source(f"{s}.bias", 0 if split == "rows" else None, sections) for s in sources)
            if split != "columns" or b.shard.rank == 0:
                self.bias = b.param(Param(f"{name}.bias", (n_here,), biases))
        self._reduce = _all_reduce(b) if split == "columns" else None

    def __call__(self, w: Weights, x_TK: torch.Tensor) -> torch.Tensor:
        y_TN: torch.Tensor = self._linear(x_TK, w[self.weight], w[self.bias] if self.bias else None)
        return self._reduce(y_TN) if self._reduce else y_TN


def _all_reduce(b: Builder) -> Kernel | None:
    return b.kernels.bind("all_reduce", b.need(), group=b.process_group) if b.shard.size > 1 else None


class Embedding:
    """Rows of a table by token id; ranks share the rows."""

    def __init__(self, b: Builder, name: str, source: str, vocab: int, hidden: int) -> None:
        rows = -(-vocab // b.shard.size)
        self.table = b.param(Param(name, (rows, hidden), (Source(source, 0),)))
        self._embed = b.kernels.bind("embed", b.need(), first=b.shard.rank * rows)
        self._reduce = _all_reduce(b)

    def __call__(self, w: Weights, ids_T: torch.Tensor) -> torch.Tensor:
        x_TE: torch.Tensor = self._embed(ids_T, w[self.table])
        return self._reduce(x_TE) if self._reduce else x_TE


class Head:
    """Logits over the whole vocabulary; ranks share the rows. `source` may be the embedding's (tied weights)."""

    def __init__(self, b: Builder, name: str, source: str, vocab: int, hidden: int) -> None:
        rows = -(-vocab // b.shard.size)
        self.weight, self._linear = b.weight(name, (rows, hidden), (Source(source, 0),))
        self.vocab = vocab
        self._gather = None
        if b.shard.size > 1:
            self._gather = b.kernels.bind("all_gather", b.need(), group=b.process_group)

    def __call__(self, w: Weights, x_LE: torch.Tensor) -> torch.Tensor:
        logits_LV: torch.Tensor = self._linear(x_LE, w[self.weight], None)
        if self._gather:
            logits_LV = self._gather(logits_LV.t()).t()
        return logits_LV[:, : self.vocab]


class Scale:
    """x * factor, the factor rounded to the model's dtype."""

    def __init__(self, b: Builder, factor: float) -> None:
        import torch

        from core.kernels.dtypes import TORCH_DTYPES

        rounded = torch.tensor(factor).to(TORCH_DTYPES[b.dtype]).item()
        self._scale_add = b.kernels.bind("scale_add", b.need(), scale=rounded - 1)

    def __call__(self, w: Weights, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._scale_add(x, x)  # x * (factor - 1) + x
        return y


class Softcap:
    """cap * tanh(x / cap)."""

    def __init__(self, b: Builder, cap: float) -> None:
        self._softcap = b.kernels.bind("softcap", b.need(), cap=cap)

    def __call__(self, w: Weights, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._softcap(x)
        return y


class RMSNorm:
    """x / rms(x) * weight, over the last axis. `add` is for checkpoints that hold the weight less 1."""

    def __init__(self, b: Builder, name: str, source: str, size: int, eps: float, add: float = 0.0) -> None:
        self.weight = b.param(Param(name, (size,), (Source(source),), add=add))
        self._norm = b.kernels.bind("rms_norm", b.need(k=size), eps=eps)

    def __call__(self, w: Weights, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._norm(x, w[self.weight])
        return y


class AddRMSNorm:
    """(norm(x + residual), x + residual). `add` as in RMSNorm."""

    def __init__(self, b: Builder, name: str, source: str, size: int, eps: float, add: float = 0.0) -> None:
        self.weight = b.param(Param(name, (size,), (Source(source),), add=add))
        self._add_norm = b.kernels.bind("add_rms_norm", b.need(k=size), eps=eps)

    def __call__(self, w: Weights, x_TE: torch.Tensor, residual_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y_TE, sum_TE = self._add_norm(x_TE, residual_TE, w[self.weight])
        return y_TE, sum_TE


class GatedMLP:
    """down(act(gate(x)) * up(x)). gate_up: E -> 2 N, gates first; down: N -> E."""

    def __init__(self, b: Builder, gate_up: Layer, down: Layer, act: str) -> None:
        self.gate_up, self.down = gate_up, down
        self._act_mul = b.kernels.bind("act_mul", b.need(), act=act)

    def __call__(self, w: Weights, x_TE: torch.Tensor) -> torch.Tensor:
        return self.down(w, self._act_mul(self.gate_up(w, x_TE)))


class LogitRows:
    """The rows of hidden states that logits are wanted of; taken before the last norm, so that it norms only those."""

    def __init__(self, b: Builder) -> None:
        self._rows = b.kernels.bind("gather_rows", b.need())

    def __call__(self, x_TE: torch.Tensor, rows_L: torch.Tensor) -> torch.Tensor:
        x_LE: torch.Tensor = self._rows(x_TE, rows_L)
        return x_LE
