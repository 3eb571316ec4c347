"""The table of kernels.

A kernel is a row here. Dispatch, the plan printout, conformance cases, rooflines and the kernel page
derive from the rows; adding a kernel is adding a row and its reference.

The reference is at once the meaning of the kernel, its default, and the oracle for others. References:
- have output shapes fixed by input shapes: no `.item()`, no boolean indexing, no loop over lengths;
- write what the row says it mutates in place, and return it; callers use only what is returned;
- take what is fixed at build, and their parts, as keyword arguments.

Legend: T tokens, S sequences, L logit rows, R rows of last_ids, B pages in a block table, P pages in
the pool, H heads (Hq query, Hkv key and value), D head size, E hidden size, V vocabulary, N and K
rows and columns of a weight. All ids, positions, slots and tables are int32.
"""

from __future__ import annotations

from core.kernels.reference import attention, comm, copy, dense, gather, kv, sampling
from core.kernels.row import Group, Row

_ROWS = (
    # attention
    Row(
        "attn_plan",
        Group.ATTENTION,
        "query_starts_S1, kv_lens_S, block_table_SB | num_tokens=T, page_tokens, window, host -> plan",
        attention.attn_plan,
        bundle="kv",
        batch_invariant=False,
    ),
    Row(
        "attn_paged",
        Group.ATTENTION,
        "q_THD, planes, plan | scale, page_tokens, window, softcap, want_lse -> o_THD (, lse_TH float32)",
        attention.attn_paged,
        rounding="scores and probabilities in float32",
        tolerance="attention",
        production=True,
        parts=("kv_gather",),
        bundle="kv",
        batch_invariant=False,
    ),
    Row(
        "attn_merge",
        Group.ATTENTION,
        "o1_THD, lse1_TH, o2_THD, lse2_TH -> o_THD, lse_TH",
        attention.attn_merge,
        tolerance="elementwise",
    ),
    # gather
    Row(
        "embed",
        Group.GATHER,
        "ids_T, table_VE | first -> x_TE; ids outside [first, first + V) give zeros",
        gather.embed,
    ),
    Row("gather_rows", Group.GATHER, "x_R..., rows_K -> y_K...", gather.gather_rows),
    Row(
        "take_ids",
        Group.GATHER,
        "ids_T, source_rows_T, last_ids_R -> ids_T; source row 0 keeps the id",
        gather.take_ids,
    ),
    Row(
        "put_ids",
        Group.GATHER,
        "last_ids_R, rows_L, ids_L -> last_ids_R; rows are distinct, except for row 0, which is scratch",
        gather.put_ids,
        mutates=("last_ids",),
    ),
    Row(
        "kv_layout",
        Group.GATHER,
        "| num_kv_heads, head_size, page_tokens, dtype -> KVLayout",
        kv.kv_layout,
        bundle="kv",
    ),
    Row(
        "kv_write",
        Group.GATHER,
        "k_THD, v_THD, planes, slots_T | page_tokens -> planes; slot = page * page_tokens + offset, -1 skips",
        kv.kv_write,
        tolerance="kv",
        mutates=("planes",),
        production=True,
        bundle="kv",
    ),
    Row(
        "kv_gather",
        Group.GATHER,
        "planes, pages_... -> k_...(page)HD, v_...(page)HD, in the model's dtype",
        kv.kv_gather,
        tolerance="kv",
        bundle="kv",
    ),
    Row(
        "kv_export",
        Group.GATHER,
        "layers (planes of each), pages_N -> canonical[layers, 2, N, page, H, D]",
        kv.kv_export,
        tolerance="kv",
        parts=("kv_gather",),
        bundle="kv",
    ),
    Row(
        "kv_import",
        Group.GATHER,
        "layers (planes of each), pages_N, canonical[layers, 2, N, page, H, D] -> layers",
        kv.kv_import,
        tolerance="kv",
        mutates=("layers",),
        parts=("kv_write",),
        bundle="kv",
    ),
    # communication; `group` is a torch.distributed process group
    Row("all_reduce", Group.COMM, "x | group -> sum of x over ranks", comm.all_reduce, mutates=("x",), tolerance="sum"),
    Row("all_gather", Group.COMM, "x_A... | group -> y_(ranks A)...", comm.all_gather),
    Row("reduce_scatter", Group.COMM, "x_(ranks A)... | group -> y_A...", comm.reduce_scatter, tolerance="sum"),
    Row(
        "all_to_all_v",
        Group.COMM,
        "x_A..., send_counts, recv_counts | group -> y_(sum recv_counts)...",
        comm.all_to_all_v,
    ),
    Row("broadcast", Group.COMM, "x | group, source -> x of rank `source`", comm.broadcast, mutates=("x",)),
    Row("send", Group.COMM, "x | group, target -> None", comm.send),
    Row("recv", Group.COMM, "x | group, source -> x", comm.recv, mutates=("x",)),
    # memory copy (h2d and d2h are methods of the device)
    Row(
        "kv_copy",
        Group.COPY,
        "planes, source_pages_N, target_pages_N | layout -> planes; all reads come before all writes",
        copy.kv_copy,
        mutates=("planes",),
        bundle="kv",
    ),
    Row(
        "kv_swap",
        Group.COPY,
        "target planes, source planes, target_pages_N, source_pages_N | layout -> target planes, on another memory",
        copy.kv_swap,
        mutates=("target",),
        bundle="kv",
    ),
    Row(
        "copy_rows",
        Group.COPY,
        "target_R..., rows_K, values_K... -> target; row -1 skips",
        copy.copy_rows,
        mutates=("target",),
    ),
    # dense
    Row(
        "pack_weight",
        Group.DENSE,
        "w_NK in a form of core.kernels.schemes | scheme -> handle, once at load",
        dense.pack_weight,
        reader="linear",
    ),
    Row(
        "linear",
        Group.DENSE,
        "x_TK, handle, bias_N or None -> y_TN",
        dense.linear,
        rounding="products summed in float32 or wider; of q4_1 and q8_0: scale, minimum + 8 scale, the weight made of "
        "them, and the product before a bias",
        tolerance="gemm",
        production=True,
        batch_invariant=False,
    ),
    Row(
        "quant_act",
        Group.DENSE,
        "x_TK -> codes_TK int8, scale_T float32; symmetric per row",
        dense.quant_act,
        tolerance="quant",
    ),
    Row(
        "rms_norm",
        Group.DENSE,
        "x_...K, w_K | eps -> y_...K",
        dense.rms_norm,
        rounding="x / rms rounded before w multiplies, or not at all",
        tolerance="norm",
        production=True,
    ),
    Row(
        "add_rms_norm",
        Group.DENSE,
        "x_TK, residual_TK, w_K | eps -> rms_norm(x + residual), x + residual",
        dense.add_rms_norm,
        rounding="the sum is rounded before it is normed; then as rms_norm",
        tolerance="norm",
        overwrites=("x", "residual"),
        parts=("scale_add", "rms_norm"),
    ),
    Row(
        "rope",
        Group.DENSE,
        "x_THD, cos_sin_TF -> y_THD; F <= D: cosines, then sines; dimensions from F on pass unchanged",
        dense.rope,
        rounding="each product, or only the sum",
        tolerance="elementwise",
        overwrites=("x",),
        production=True,
    ),
    Row(
        "act_mul",
        Group.DENSE,
        "x_T(2K) | act -> act(x[:, :K]) * x[:, K:]_TK",
        dense.act_mul,
        rounding="act(.) or not at all",
        tolerance="elementwise",
        production=True,
    ),
    Row("scale_add", Group.DENSE, "x, y | scale -> x * scale + y", dense.scale_add, tolerance="elementwise"),
    Row("softcap", Group.DENSE, "x | cap -> cap * tanh(x / cap)", dense.softcap, tolerance="elementwise"),
    # sampling
    Row(
        "penalize",
        Group.SAMPLING,
        "logits_LV, history_LH (-1 pads), num_prompt_L, repetition_L, frequency_L, presence_L -> logits_LV float32",
        sampling.penalize,
        tolerance="elementwise",
    ),
    Row(
        "add_bias",
        Group.SAMPLING,
        "logits_LV, ids_LB (-1 pads), bias_LB -> logits_LV float32",
        sampling.add_bias,
        tolerance="elementwise",
    ),
    Row(
        "min_p",
        Group.SAMPLING,
        "logits_LV, temperature_L, least_L -> logits_LV float32, -inf where p < least * max p",
        sampling.min_p,
        tolerance="elementwise",
    ),
    Row(
        "apply_mask",
        Group.SAMPLING,
        "logits_LV, mask_L(V/32) bits -> logits_LV, -inf where the bit is 0",
        sampling.apply_mask,
    ),
    Row(
        "sample",
        Group.SAMPLING,
        "logits_LV, temperature_L, top_k_L, top_p_L, seed_L2, counter_L | greedy, top_k_max "
        "-> ids_L; -1 for a row with NaN",
        sampling.sample,
        rounding="probabilities in float32",
        tolerance="sampling",
    ),
    Row(
        "logprobs_topk",
        Group.SAMPLING,
        "logits_LV, ids_L | k -> logprob_L, rank_L, top_logprobs_Lk, top_ids_Lk",
        sampling.logprobs_topk,
        tolerance="elementwise",
    ),
    Row(
        "spec_verify",
        Group.SAMPLING,
        "draft_ids_SK (-1 pads), sampled_ids_S(K+1), rows_S(K+1) -> num_accepted_S, row_S",
        sampling.spec_verify,
    ),
)

TABLE: dict[str, Row] = {row.name: row for row in _ROWS}
KV_BUNDLE = tuple(row.name for row in _ROWS if row.bundle == "kv")
