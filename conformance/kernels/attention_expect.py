"""What attention must give for a scene, and how far off it may be.

Legend as in `conformance.kernels.attention_scene`.
"""

from __future__ import annotations

import numpy as np
import torch

from conformance.bounds import EXP_ERROR, ROUNDOFF, W, eta, kappa
from conformance.draw import Floats, exact, stored
from conformance.judge import Expected
from conformance.kernels.attention_scene import Scene, Stage
from conformance.oracle.attention import Attended, attention, joined, nothing
from conformance.row_exam import Outputs
from conformance.target import Bench
from core.kernels.dtypes import DTYPE_NAMES

_STORE_RULES = 1 / 8
"""Part of u up to which errors of scores are small beside rounding: so far, rms errors of right kernels are alike."""

_MEAN_ROUNDING = 3**-0.5
"""The rms error of rounding, in u, where it is greatest."""


def attend(scene: Scene, bench: Bench, heads_beside: int = 0) -> Outputs:
    """Attention of one step, and the entries that it read."""
    stage = Stage(scene, bench)
    results = stage.attend(stage.plan(scene.host()), heads_beside)
    return dict(zip(("o", "lse"), results, strict=False)) | stage.stored()


def expected(scene: Scene, stored_k: torch.Tensor, stored_v: torch.Tensor, exactly: bool) -> tuple[Expected, Expected]:
    """What o and lse must be. `exactly`: o is one value of the dtype, unless the device rounds what it stores.

    In float32 the halves that a selector's results are made of may be off by a bit, where parts of the keys are joined
    by exp of their lse.
    """
    dtype = DTYPE_NAMES[scene.q.dtype]
    seen = _oracle(scene, stored_k, stored_v)
    bound, lse_bound = _bounds(seen, dtype, scene.softcap or 0)
    kept = _kept(scene, stored_k, stored_v)
    lse = Expected(value=seen.lse, bound=lse_bound, dtype="float32", rms=False)
    if exactly and kept and dtype != "float32":
        return Expected(bits=stored(seen.o, dtype)), lse
    score_error = 2 * kappa(scene.q.shape[2]) * W * float(seen.reach.max(initial=0))
    # Where scores are so large that their own errors show, a row is off as a whole, by what A allows.
    store_rules = dtype == "float32" or score_error < _STORE_RULES * ROUNDOFF[dtype]
    noise = _MEAN_ROUNDING * ROUNDOFF[dtype] * np.sqrt(seen.power)
    rms = kept and store_rules and dtype != "float32"
    return Expected(value=seen.o, bound=bound, dtype=dtype, rms=rms, noise=noise, bias=store_rules), lse


def _oracle(scene: Scene, stored_k: torch.Tensor, stored_v: torch.Tensor) -> Attended:
    q = exact(scene.q)
    starts, parts = scene.starts, []
    for s, n in enumerate(scene.kv_lens):
        queries = q[starts[s] : starts[s + 1]]
        k, v = (exact(x[s].flatten(0, 1)[:n]) for x in (stored_k, stored_v))
        parts.append(attention(queries, k, v, scale=scene.scale, window=scene.window, softcap=scene.softcap))
    return joined([*parts, nothing(len(q) - starts[-1], *q.shape[1:])])


def as_stored(scene: Scene, outputs: Outputs) -> dict[str, Expected]:
    """What must have been stored by a device that says it loses nothing: the given keys and values, where there are."""
    if float(outputs["stored_error"]):
        return {}
    rows, found = _rows(scene), {}
    for name, given in (("stored_k", scene.k), ("stored_v", scene.v)):
        whole = outputs[name].clone()
        whole.flatten(0, 2)[rows] = given
        found[name] = Expected(bits=whole)
    return found


def _kept(scene: Scene, stored_k: torch.Tensor, stored_v: torch.Tensor) -> bool:
    """Whether the device stored keys and values as they were given."""
    rows = _rows(scene)
    return all(x.flatten(0, 2)[rows].equal(y) for x, y in ((stored_k, scene.k), (stored_v, scene.v)))


def _rows(scene: Scene) -> torch.Tensor:
    """Of each entry, where it is among those of all block tables [S, B, page]."""
    pages, slots = scene.table.flatten().long(), scene.slots.long()
    where = torch.zeros(scene.num_pages, dtype=torch.long).index_copy(0, pages, torch.arange(len(pages)))
    return where[slots // scene.page] * scene.page + slots % scene.page


def _bounds(seen: Attended, dtype: str, softcap: float) -> tuple[Floats, Floats]:
    """Of the errors of o [T, H, D] and lse [T, H].

    A score is off by `score`: a float32 sum over D terms, and tanh where it is capped (which may be made of exp). exp
    turns that into a relative error of each weight, and so does the sum that divides; both are sums of up to num_keys
    terms. Weights may be rounded to the dtype, where those below its smallest number are lost: u and eta.
    """
    u, head_size = ROUNDOFF[dtype], seen.o.shape[2]
    length = kappa(1) * np.sqrt(seen.num_keys) * W
    score = kappa(head_size) * W * seen.reach + EXP_ERROR * softcap
    weight = u + length + np.expm1(np.minimum(2 * (score + EXP_ERROR), 50))
    lost = eta(dtype) / seen.total[..., None] * seen.values
    o = u * np.abs(seen.o) + seen.spread * weight[..., None] + lost + eta(dtype)
    finite = np.where(np.isfinite(seen.lse), seen.lse, 0)
    lse = score + length + EXP_ERROR * (1 + np.log(seen.total)) + W * np.abs(finite)
    nobody = seen.num_keys == 0
    return np.where(nobody[..., None], 0, o), np.where(nobody, 0, lse)
