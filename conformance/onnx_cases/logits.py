"""Cases about the greatest numbers and the logarithms of probabilities."""

from __future__ import annotations

import torch

from conformance.onnx_cases.load import OnnxCase
from conformance.onnx_cases.moves import gather_rows
from conformance.onnx_cases.stand import Adapter, Outputs, Stand, only


def _rows(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Size]:
    """[L, V] with the axis last, and the shape of the other axes."""
    last = x.movedim(axis, -1)
    return last.reshape(-1, last.shape[-1]), last.shape[:-1]


def _argmax(case: OnnxCase, stand: Stand) -> Outputs:
    """Greedy sampling: of equals, the lowest id."""
    axis = case.attributes.get("axis", 0)
    logits, others = _rows(case.inputs["data"], axis)
    num_rows = len(logits)
    inputs = {
        "logits": logits,
        "temperature": torch.zeros(num_rows),
        "top_k": torch.zeros(num_rows, dtype=torch.int32),
        "top_p": torch.ones(num_rows),
        "seed": torch.zeros((num_rows, 2), dtype=torch.int32),
        "counter": torch.zeros(num_rows, dtype=torch.int32),
    }
    kernel = stand.bind("sample", greedy=True, top_k_max=0)
    ids = stand.get(kernel(*(stand.put(name, x) for name, x in inputs.items()))).long().view(others)
    return only(case, ids.unsqueeze(axis) if case.attributes["keepdims"] else ids)


def _log_softmax(case: OnnxCase, stand: Stand) -> Outputs:
    """Of every id: each row as often as it has numbers."""
    x = case.inputs["x"]
    axis = case.attributes.get("axis", -1)
    logits, others = _rows(x, axis)
    size = logits.shape[1]
    repeated = logits.repeat_interleave(size, 0)
    ids = torch.arange(size, dtype=torch.int32).repeat(len(logits))
    logprobs = stand.bind("logprobs_topk", k=1)(stand.put("logits", repeated), stand.put("ids", ids))[0]
    return only(case, stand.get(logprobs).view(*others, size).movedim(-1, axis))


def _top_k(case: OnnxCase, stand: Stand) -> Outputs:
    """The ids; values are gathered by them, as words of 32 bits. Integers are small: exact in float32."""
    x, k = case.inputs["x"], int(case.inputs["k"])
    axis = case.attributes["axis"]
    rows, others = _rows(x, axis)
    kernel = stand.bind("logprobs_topk", k=k)
    first = torch.zeros(len(rows), dtype=torch.int32)
    ids = stand.get(kernel(stand.put("logits", rows.float()), stand.put("ids", first))[3])
    words = rows.unsqueeze(-1).view(torch.int32)
    taken = [gather_rows(stand, table, chosen) for table, chosen in zip(words, ids, strict=True)]
    values = torch.stack(taken).view(x.dtype).view(*others, k)
    names = list(case.outputs)
    return {names[0]: values.movedim(-1, axis), names[1]: ids.long().view(*others, k).movedim(-1, axis)}


ARGMAX = Adapter("sample", "greedy", _argmax)
LOG_SOFTMAX = Adapter("logprobs_topk", "of every id", _log_softmax)
TOP_K = Adapter("logprobs_topk", "ids; then gather_rows", _top_k)
