"""Which rows of the kernel table the CPU supplies, and what each takes."""

from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.row import Implementation, Kernel
from core.plugin import DeviceFacts, Support
from devices.cpu import attention, dense, kv, plan, sampling

_KERNELS: dict[str, Kernel] = {
    "linear": dense.linear,
    "rms_norm": dense.rms_norm,
    "add_rms_norm": dense.add_rms_norm,
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


def implementations(facts: DeviceFacts) -> list[Implementation]:
    """The kernels of provider "cpu", in the dtypes that `facts` states."""
    dtypes = frozenset(facts.dtypes)
    assert dtypes <= TORCH_DTYPES.keys()
    return [
        Implementation(
            row,
            kernel,
            "cpu",
            Support(
                dtypes=dtypes,
                schemes=frozenset({"dense"}) if row == "linear" else None,
                graph_safe=row not in _BRANCHES,
            ),
        )
        for row, kernel in _KERNELS.items()
    ]
