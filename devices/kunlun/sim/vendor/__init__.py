"""A stand-in for the vendor's ops on the simulator: the same names and arguments, the limits that the plugin states.

An op launches its arithmetic in stream order and returns a code: 0, or REFUSED for arguments that it does not take;
then nothing was launched. Numbers are computed in float32 and rounded where the result is stored.
"""

from devices.kunlun.sim.vendor.attention import prefill_attention
from devices.kunlun.sim.vendor.cache import quant2d, reshape_and_cache, reshape_and_cache_flash, swap_blocks
from devices.kunlun.sim.vendor.dense import add_rmsnorm, matmul, rmsnorm, rotary_embedding, silu_and_mul
from devices.kunlun.sim.vendor.launch import Declared

__all__ = [
    "Declared",
    "add_rmsnorm",
    "matmul",
    "prefill_attention",
    "quant2d",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
    "swap_blocks",
]
