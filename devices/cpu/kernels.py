"""Which rows of the kernel table the CPU supplies, and what each takes."""

from dataclasses import replace
from functools import partial

from core.kernels import operators
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.row import Implementation, Kernel
from core.plugin import DeviceFacts, Support
from devices.cpu import attention, dense, invariant, kv, packed, plan, sampling
from devices.cpu.native import attention as native_attention
from devices.cpu.native.attention import AttentionKernels
from devices.cpu.native.library import find_native
from devices.cpu.native.linear import LinearKernels, linear
from devices.cpu.native.rows import RowKernels
from devices.cpu.native.select import SelectKernels

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
    """The kernels of providers "cpu-native", "cpu" and "cpu-invariant", in the dtypes that `facts` states."""
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
    return _native() + fast + _packed() + same


def _native() -> list[Implementation]:
    """What the compiled library has, for the variant that this process uses."""
    variant = find_native().variant
    if variant is None:
        return []
    bfloat16 = Support(dtypes=frozenset({"bfloat16"}), batch_invariant=True)
    weights = replace(bfloat16, schemes=frozenset({"dense", "q4_1", "q8_0"}))
    pool = replace(bfloat16, head_sizes=native_attention.HEAD_SIZES, page_sizes=native_attention.PAGE_SIZES)
    of_linear, of_pool = LinearKernels(variant), AttentionKernels(variant)
    of_rows, of_select = RowKernels(variant), SelectKernels(variant)
    rows: list[tuple[str, Kernel, Support]] = [
        ("linear", linear, weights),
        ("pack_weight", of_linear.pack_weight, weights),
        ("kv_layout", native_attention.kv_layout, pool),
        ("kv_write", of_pool.kv_write, pool),
        ("kv_gather", native_attention.kv_gather, pool),
        ("attn_plan", of_pool.attn_plan, pool),
        ("attn_paged", of_pool.attn_paged, pool),
        ("rms_norm", of_rows.rms_norm, bfloat16),
        ("add_rms_norm", of_rows.add_rms_norm, bfloat16),
        ("rope", of_rows.rope, bfloat16),
        ("act_mul", of_rows.act_mul, bfloat16),
        ("embed", of_select.embed, bfloat16),
        ("gather_rows", of_select.gather_rows, bfloat16),
        ("take_ids", of_select.take_ids, bfloat16),
        ("put_ids", of_select.put_ids, bfloat16),
        ("spec_verify", of_select.spec_verify, bfloat16),
        ("sample", of_select.sample, replace(bfloat16, graph_safe=False)),
    ]
    return [Implementation(row, kernel, "cpu-native", support) for row, kernel, support in rows]


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
