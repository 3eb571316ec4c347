"""The types of kernels.h: what a kernel is told of one call, by address and size."""

import ctypes

POINTER, INT = ctypes.c_void_p, ctypes.c_int64
LINEAR = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, INT, INT, POINTER, INT, INT, POINTER, POINTER)


class Attention(ctypes.Structure):
    """`Attention` of kernels.h."""

    _fields_ = (
        ("q", POINTER),
        *((name, INT) for name in ("q_token_stride", "q_head_stride", "num_tokens", "num_heads")),
        *((name, INT) for name in ("num_kv_heads", "head_size")),
        *((name, POINTER) for name in ("keys", "values")),
        *((name, INT) for name in ("num_pages", "page_tokens")),
        *((name, POINTER) for name in ("query_starts", "kv_lens", "tile_starts", "table")),
        *((name, INT) for name in ("num_seqs", "table_width")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        ("window", INT),
        *((name, POINTER) for name in ("out", "lse")),
        ("head_parts", INT),
    )


class KVWrite(ctypes.Structure):
    """`KVWrite` of kernels.h."""

    _fields_ = (
        *((name, POINTER) for name in ("k", "v")),
        *((name, 2 * INT) for name in ("k_strides", "v_strides")),
        *((name, INT) for name in ("num_tokens", "num_heads", "head_size")),
        *((name, POINTER) for name in ("keys", "values")),
        *((name, INT) for name in ("num_pages", "page_tokens")),
        ("slots", POINTER),
    )


class Norm(ctypes.Structure):
    """`Norm` of kernels.h."""

    _fields_ = (
        ("x", POINTER),
        *((name, INT) for name in ("x_stride", "inner", "group_stride")),
        *((name, POINTER) for name in ("residual", "w", "y")),
        *((name, INT) for name in ("rows", "columns")),
        ("eps", ctypes.c_float),
    )


class Rope(ctypes.Structure):
    """`Rope` of kernels.h."""

    _fields_ = (
        ("x", POINTER),
        *((name, INT) for name in ("token_stride", "head_stride")),
        ("cos_sin", POINTER),
        *((name, INT) for name in ("rows", "heads", "half")),
    )


class ActMul(ctypes.Structure):
    """`ActMul` of kernels.h."""

    _fields_ = (
        ("x", POINTER),
        ("x_stride", INT),
        ("y", POINTER),
        *((name, INT) for name in ("rows", "columns", "gelu_tanh")),
    )


class Product(ctypes.Structure):
    """`Product` of kernels.h."""

    _fields_ = (
        ("weight", POINTER),
        *((name, INT) for name in ("n", "k")),
        ("x", POINTER),
        *((name, INT) for name in ("rows", "row_stride")),
        *((name, POINTER) for name in ("bias", "y")),
    )


class Gather(ctypes.Structure):
    """`Gather` of kernels.h."""

    _fields_ = (
        ("x", POINTER),
        *((name, INT) for name in ("num_rows", "row_bytes", "x_stride")),
        ("rows", POINTER),
        *((name, INT) for name in ("first", "num")),
        ("y", POINTER),
    )


class TakeIds(ctypes.Structure):
    """`TakeIds` of kernels.h."""

    _fields_ = (
        *((name, POINTER) for name in ("ids", "source_rows", "last_ids")),
        *((name, INT) for name in ("ids_stride", "num", "num_rows")),
        ("out", POINTER),
    )


class PutIds(ctypes.Structure):
    """`PutIds` of kernels.h."""

    _fields_ = (
        *((name, POINTER) for name in ("last_ids", "rows", "ids")),
        *((name, INT) for name in ("num", "num_rows")),
    )


class AttentionPlan(ctypes.Structure):
    """`AttentionPlan` of kernels.h."""

    _fields_ = (
        *((name, POINTER) for name in ("query_starts", "kv_lens", "table")),
        *((name, INT) for name in ("num_seqs", "width", "table_stride")),
        *((name, POINTER) for name in ("query_starts_copy", "kv_lens_copy", "table_copy", "tile_starts")),
    )


class Greedy(ctypes.Structure):
    """`Greedy` of kernels.h."""

    _fields_ = (
        ("logits", POINTER),
        *((name, INT) for name in ("rows", "columns", "stride")),
        ("ids", POINTER),
    )


class SpecVerify(ctypes.Structure):
    """`SpecVerify` of kernels.h."""

    _fields_ = (
        *((name, POINTER) for name in ("draft_ids", "sampled_ids", "rows")),
        *((name, INT) for name in ("num_seqs", "num_drafts")),
        *((name, POINTER) for name in ("num", "row")),
    )


class Call(ctypes.Structure):
    """`Call` of kernels.h."""

    _fields_ = tuple((name, POINTER) for name in ("multiply", "kernel", "job"))


class Kernels(ctypes.Structure):
    """`Kernels` of kernels.h."""

    _fields_ = (
        ("linear_bf16", LINEAR),
        ("linear_q4_1", LINEAR),
        ("linear_q8_0", LINEAR),
        ("attention", ctypes.CFUNCTYPE(None, ctypes.POINTER(Attention))),
        ("kv_write", ctypes.CFUNCTYPE(None, ctypes.POINTER(KVWrite))),
        ("norm", ctypes.CFUNCTYPE(None, ctypes.POINTER(Norm))),
        ("rope", ctypes.CFUNCTYPE(None, ctypes.POINTER(Rope))),
        ("act_mul", ctypes.CFUNCTYPE(None, ctypes.POINTER(ActMul))),
        ("gather", ctypes.CFUNCTYPE(None, ctypes.POINTER(Gather))),
        ("take_ids", ctypes.CFUNCTYPE(None, ctypes.POINTER(TakeIds))),
        ("put_ids", ctypes.CFUNCTYPE(None, ctypes.POINTER(PutIds))),
        ("attention_plan", ctypes.CFUNCTYPE(None, ctypes.POINTER(AttentionPlan))),
        ("greedy", ctypes.CFUNCTYPE(None, ctypes.POINTER(Greedy))),
        ("spec_verify", ctypes.CFUNCTYPE(None, ctypes.POINTER(SpecVerify))),
    )
