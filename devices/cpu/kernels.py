"""Which rows of the kernel table the CPU supplies, and what each takes."""

from functools import partial

from core.kernels import operators
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.row import Implementation, Kernel
from core.plugin import DeviceFacts, Support
from devices.cpu import attention, dense, invariant, kv, packed, plan, sampling

_KERNELS: dict[str, Kernel] = {
    "linear": operators.linear,
    "rms_norm": operators.rms_norm,
    "add_rms_norm": operators.add_rms_norm,
    "rope": dense.rope,
    "act_mul": dense.act_mul,
    "embed": dense.embed,
    "kv_layout": kv.kv_layout,
    "kv_write": kv.kv_write,
    "kv_gather": kv.kv_gather,
    "attn_plan": plan.attn_plan,
    "attn_paged": attention.attn_paged,
    "sample": sampling.sample,
}

# These branch on lengths or values, so a replay would repeat the branches it was captured with.
_BRANCHES = frozenset({"attn_plan", "attn_paged", "embed", "sample"})

# How torch sums here depends on the shapes of the whole step.
_BATCH_DEPENDENT = frozenset({"linear", "attn_plan", "attn_paged"})

_INVARIANT: dict[str, Kernel] = {
    "linear": invariant.linear,
    "kv_layout": kv.kv_layout,
    "kv_write": kv.kv_write,
    "kv_gather": kv.kv_gather,
    "attn_plan": invariant.attn_plan,
    "attn_paged": invariant.attn_paged,
}


def implementations(facts: DeviceFacts) -> list[Implementation]:
    """The kernels of providers "cpu" and "cpu-invariant", in the dtypes that `facts` states."""
    dtypes = frozenset(facts.dtypes)
    assert dtypes <= TORCH_DTYPES.keys()

    def one(row: str, kernel: Kernel, provider: str, batch_invariant: bool) -> Implementation:
        support = Support(
            dtypes=dtypes,
            schemes=frozenset({"dense"}) if row == "linear" else None,
            graph_safe=row not in _BRANCHES,
            batch_invariant=batch_invariant,
        )
        return Implementation(row, kernel, provider, support)

    fast = [one(row, kernel, "cpu", row not in _BATCH_DEPENDENT) for row, kernel in _KERNELS.items()]
    same = [one(row, kernel, "cpu-invariant", True) for row, kernel in _INVARIANT.items()]
    return fast + _packed() + same


def _packed() -> list[Implementation]:
    """Weights of 4 bits, where torch has them."""
    block_rows = packed.find_block_rows()
    if block_rows is None:
        return []
    support = Support(dtypes=frozenset({"bfloat16"}), schemes=frozenset({"q4_1"}))
    pack_weight = partial(packed.pack_weight, block_rows=block_rows)
    return [
        Implementation("linear", packed.linear, "cpu", support),
        Implementation("pack_weight", pack_weight, "cpu", support),
    ]
