"""Which ONNX case goes to which row. Every case stands once, here or in `left_out`.

A case is put to a row where its contract takes the case as it is, or with inputs moved about; no contract is stretched.
"""

from __future__ import annotations

from conformance.onnx_cases import attention, dense, logits, moves
from conformance.onnx_cases.stand import Adapter

TAKEN: tuple[tuple[Adapter, str], ...] = (
    (
        attention.SINGLE,
        """
        attention_23_boolmask_fullymasked_row_nan_robustness attention_3d attention_3d_diff_heads_sizes
        attention_3d_diff_heads_sizes_scaled attention_3d_diff_heads_sizes_softcap attention_3d_gqa
        attention_3d_gqa_scaled attention_3d_gqa_softcap attention_3d_scaled attention_3d_softcap
        attention_3d_transpose_verification attention_4d attention_4d_attn_mask_bool
        attention_4d_attn_mask_bool_4d attention_4d_causal_nonpad_attn_mask_composition
        attention_4d_diff_heads_sizes attention_4d_diff_heads_sizes_scaled attention_4d_diff_heads_sizes_softcap
        attention_4d_fp16 attention_4d_gqa attention_4d_gqa_scaled attention_4d_gqa_softcap attention_4d_scaled
        attention_4d_softcap attention_4d_softcap_neginf_mask attention_4d_softcap_neginf_mask_poison
        attention_bidirectional_window attention_causal_boolmask_nan_robustness attention_local_window_default
        attention_local_window_ext_cache_float16_mask attention_local_window_rank1_boolean_mask
        attention_local_window_with_past flexattention flexattention_diff_head_sizes flexattention_fp16
        flexattention_gqa flexattention_scaled flexattention_soft_cap
        """,
    ),
    (
        attention.ADDED,
        """
        attention_3d_attn_mask attention_3d_diff_heads_sizes_attn_mask
        attention_3d_diff_heads_with_past_and_present attention_3d_gqa_attn_mask
        attention_3d_gqa_with_past_and_present attention_3d_with_past_and_present attention_4d_attn_mask
        attention_4d_attn_mask_3d attention_4d_attn_mask_3d_causal attention_4d_attn_mask_4d
        attention_4d_attn_mask_4d_causal attention_4d_attn_mask_causal_bf16 attention_4d_causal_padded_kv_bf16
        attention_4d_diff_heads_mask4d_padded_kv attention_4d_diff_heads_sizes_attn_mask
        attention_4d_diff_heads_with_past_and_present attention_4d_diff_heads_with_past_and_present_mask3d
        attention_4d_diff_heads_with_past_and_present_mask4d attention_4d_gqa_attn_mask
        attention_4d_gqa_with_past_and_present attention_4d_gqa_with_past_and_present_fp16
        attention_4d_padded_kv_bf16 attention_4d_with_past_and_present
        attention_local_window_ext_cache_rank2_mask attention_local_window_ext_cache_rank3_head_mask
        attention_local_window_ext_cache_rank4_batch_mask
        """,
    ),
    (
        attention.WHOLE,
        """
        attention_3d_causal attention_3d_causal_bf16 attention_3d_diff_heads_sizes_causal
        attention_3d_gqa_causal attention_3d_local_window attention_4d_causal attention_4d_causal_bf16
        attention_4d_causal_fp16 attention_4d_causal_nonpad_batch_prefill
        attention_4d_causal_nonpad_continued_prefill attention_4d_causal_nonpad_negative_offset_structural_empty
        attention_4d_causal_with_past_and_present attention_4d_diff_heads_sizes_causal attention_4d_gqa_causal
        attention_4d_gqa_causal_nonpad_decode attention_4d_gqa_causal_nonpad_decode_fp16 attention_local_window
        flexattention_causal_mask
        """,
    ),
    (
        dense.ROPE,
        """
        rotary_embedding rotary_embedding_3d_input rotary_embedding_interleaved rotary_embedding_no_position_ids
        rotary_embedding_no_position_ids_interleaved rotary_embedding_no_position_ids_rotary_dim
        rotary_embedding_with_interleaved_rotary_dim rotary_embedding_with_rotary_dim
        """,
    ),
    (
        dense.RMS_NORM,
        """
        rms_normalization_2d_axis0 rms_normalization_2d_axis1 rms_normalization_2d_axis_negative_1
        rms_normalization_2d_axis_negative_2 rms_normalization_3d_axis0_epsilon
        rms_normalization_3d_axis1_epsilon rms_normalization_3d_axis2_epsilon
        rms_normalization_3d_axis_negative_1_epsilon rms_normalization_3d_axis_negative_2_epsilon
        rms_normalization_3d_axis_negative_3_epsilon rms_normalization_4d_axis0 rms_normalization_4d_axis1
        rms_normalization_4d_axis2 rms_normalization_4d_axis3 rms_normalization_4d_axis_negative_1
        rms_normalization_4d_axis_negative_2 rms_normalization_4d_axis_negative_3
        rms_normalization_4d_axis_negative_4 rms_normalization_default_axis
        """,
    ),
    (
        dense.MATMUL,
        """
        matmul_1d_1d matmul_1d_3d matmul_2d matmul_3d matmul_4d matmul_4d_1d matmul_bcast
        """,
    ),
    (
        dense.GEMM_SCALED,
        """
        gemm_all_attributes gemm_alpha gemm_beta
        """,
    ),
    (
        dense.GEMM,
        """
        gemm_default_matrix_bias gemm_default_no_bias gemm_default_scalar_bias
        gemm_default_single_elem_vector_bias gemm_default_vector_bias gemm_default_zero_bias gemm_transposeA
        gemm_transposeB
        """,
    ),
    (
        dense.SWIGLU,
        """
        swiglu swiglu_float16
        """,
    ),
    (
        dense.SWISH,
        """
        swish
        """,
    ),
    (
        dense.GELU,
        """
        gelu_default_1 gelu_default_2 gelu_tanh_1 gelu_tanh_2
        """,
    ),
    (
        attention.TENSOR_SCATTER,
        """
        tensorscatter tensorscatter_3d tensorscatter_circular
        """,
    ),
    (
        moves.GATHER,
        """
        gather_0 gather_1 gather_2d_indices gather_negative_indices
        """,
    ),
    (
        moves.GATHER_ELEMENTS,
        """
        gather_elements_0 gather_elements_1 gather_elements_negative_indices
        """,
    ),
    (
        moves.GATHER_ND,
        """
        gathernd_example_float32
        """,
    ),
    (
        moves.GATHER_ND_INTEGERS,
        """
        gathernd_example_int32 gathernd_example_int32_batch_dim1
        """,
    ),
    (
        moves.SCATTER_ELEMENTS,
        """
        scatter_with_axis scatter_without_axis scatter_elements_with_axis scatter_elements_without_axis
        """,
    ),
    (
        moves.SCATTER_ND,
        """
        scatternd
        """,
    ),
    (
        attention.SOFTMAX,
        """
        softmax_axis_0 softmax_axis_1 softmax_axis_2 softmax_default_axis softmax_example softmax_large_number
        softmax_negative_axis
        """,
    ),
    (
        logits.LOG_SOFTMAX,
        """
        logsoftmax_axis_0 logsoftmax_axis_1 logsoftmax_axis_2 logsoftmax_default_axis logsoftmax_example_1
        logsoftmax_large_number logsoftmax_negative_axis
        """,
    ),
    (
        logits.TOP_K,
        """
        top_k top_k_negative_axis top_k_same_values top_k_same_values_2d top_k_same_values_largest top_k_uint64
        """,
    ),
    (
        logits.ARGMAX,
        """
        argmax_default_axis_example argmax_default_axis_random argmax_keepdims_example argmax_keepdims_random
        argmax_negative_axis_keepdims_example argmax_negative_axis_keepdims_random argmax_no_keepdims_example
        argmax_no_keepdims_random
        """,
    ),
)

ADAPTERS: dict[str, Adapter] = {name: adapter for adapter, names in TAKEN for name in names.split()}
"""Name of a case -> how it is put to a row."""
