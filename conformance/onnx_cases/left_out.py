"""Which ONNX cases go to no row, and why: what they ask for and rows have not."""

from __future__ import annotations

LEFT_OUT: tuple[tuple[str, str], ...] = (
    (
        "scores and probabilities are asked for beside the result: attn_paged never has them in memory",
        """
        attention_23_fullymasked_qk_matmul_output_mode3_zero
        attention_24_fullymasked_qk_matmul_output_mode3_zero
        attention_24_qk_matmul_output_mode3_softmax_precision attention_3d_with_past_and_present_qk_matmul
        attention_3d_with_past_and_present_qk_matmul_bias attention_3d_with_past_and_present_qk_matmul_softcap
        attention_3d_with_past_and_present_qk_matmul_softmax attention_4d_with_past_and_present_qk_matmul
        attention_4d_with_past_and_present_qk_matmul_bias
        attention_4d_with_past_and_present_qk_matmul_bias_3d_mask
        attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal
        attention_4d_with_past_and_present_qk_matmul_bias_4d_mask
        attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal attention_4d_with_qk_matmul
        attention_4d_with_qk_matmul_bias attention_4d_with_qk_matmul_softcap attention_4d_with_qk_matmul_softmax
        attention_local_window_gqa_rank4_mask
        """,
    ),
    (
        "float64: no device computes in it",
        """
        flexattention_double
        """,
    ),
    (
        "probabilities are scaled before they weigh values: attn_paged has no such factor",
        """
        flexattention_prob_mod
        """,
    ),
    (
        "scores are changed by a graph: attn_paged has scale, softcap, window and the causal order",
        """
        flexattention_relative_positional flexattention_score_mod
        """,
    ),
    (
        "the mean is subtracted, and there is a bias: no family has such a norm",
        """
        layer_normalization_2d_axis0 layer_normalization_2d_axis1 layer_normalization_2d_axis_negative_1
        layer_normalization_2d_axis_negative_2 layer_normalization_3d_axis0_epsilon
        layer_normalization_3d_axis1_epsilon layer_normalization_3d_axis2_epsilon
        layer_normalization_3d_axis_negative_1_epsilon layer_normalization_3d_axis_negative_2_epsilon
        layer_normalization_3d_axis_negative_3_epsilon layer_normalization_4d_axis0 layer_normalization_4d_axis1
        layer_normalization_4d_axis2 layer_normalization_4d_axis3 layer_normalization_4d_axis_negative_1
        layer_normalization_4d_axis_negative_2 layer_normalization_4d_axis_negative_3
        layer_normalization_4d_axis_negative_4 layer_normalization_default_axis
        """,
    ),
    (
        "the gate's sigmoid has a factor: act_mul has none",
        """
        swiglu_alpha
        """,
    ),
    (
        "what is there is combined with what is written: copy_rows replaces it",
        """
        scatter_elements_with_duplicate_indices scatter_elements_with_reduction_max
        scatter_elements_with_reduction_min scatter_elements_with_reduction_mul scatternd_add scatternd_max
        scatternd_max_with_element_indices scatternd_min scatternd_min_with_element_indices scatternd_multiply
        """,
    ),
    (
        "a row is counted from the end: copy_rows skips negative rows",
        """
        scatter_elements_with_negative_indices
        """,
    ),
    (
        "the least numbers are wanted: logprobs_topk ranks from the greatest",
        """
        top_k_smallest
        """,
    ),
    (
        "of equals the last is wanted: sample takes the lowest id",
        """
        argmax_default_axis_example_select_last_index argmax_default_axis_random_select_last_index
        argmax_keepdims_example_select_last_index argmax_keepdims_random_select_last_index
        argmax_negative_axis_keepdims_example_select_last_index
        argmax_negative_axis_keepdims_random_select_last_index argmax_no_keepdims_example_select_last_index
        argmax_no_keepdims_random_select_last_index
        """,
    ),
    (
        "running sums are a step within sample, not a row",
        """
        cumsum_1d cumsum_1d_exclusive cumsum_1d_int32_exclusive cumsum_1d_reverse cumsum_1d_reverse_exclusive
        cumsum_2d_axis_0 cumsum_2d_axis_1 cumsum_2d_int32 cumsum_2d_negative_axis
        """,
    ),
    (
        "codes by a given scale and zero point: quant_act finds its own scale, one per row, symmetric",
        """
        quantizelinear quantizelinear_axis quantizelinear_blocked_asymmetric quantizelinear_blocked_symmetric
        quantizelinear_e4m3fn quantizelinear_e5m2 quantizelinear_float4e2m1 quantizelinear_int16
        quantizelinear_int2 quantizelinear_int4 quantizelinear_uint16 quantizelinear_uint2 quantizelinear_uint4
        """,
    ),
    (
        "numbers from codes: weights are dequantised within linear, in blocks of 32",
        """
        dequantizelinear dequantizelinear_axis dequantizelinear_blocked dequantizelinear_e4m3fn
        dequantizelinear_e4m3fn_float16 dequantizelinear_e4m3fn_zero_point dequantizelinear_e5m2
        dequantizelinear_float4e2m1 dequantizelinear_int16 dequantizelinear_int2 dequantizelinear_int4
        dequantizelinear_uint16 dequantizelinear_uint2 dequantizelinear_uint4
        """,
    ),
    (
        "unsigned codes with one scale and zero point: quant_act is symmetric, one scale per row",
        """
        dynamicquantizelinear dynamicquantizelinear_max_adjusted dynamicquantizelinear_min_adjusted
        """,
    ),
    (
        "a product of integers with zero points: linear has none",
        """
        matmulinteger
        """,
    ),
    (
        "a product of codes, quantised again: linear has no such form",
        """
        qlinearmatmul_2D_int8_float16 qlinearmatmul_2D_int8_float32 qlinearmatmul_2D_uint8_float16
        qlinearmatmul_2D_uint8_float32 qlinearmatmul_3D_int8_float16 qlinearmatmul_3D_int8_float32
        qlinearmatmul_3D_uint8_float16 qlinearmatmul_3D_uint8_float32
        """,
    ),
    (
        "there is no row for linear attention yet",
        """
        linear_attention_decode_step linear_attention_delta linear_attention_explicit_scale
        linear_attention_fp16 linear_attention_gated linear_attention_gated_delta
        linear_attention_gated_delta_beta_scalar linear_attention_gated_delta_gqa
        linear_attention_gated_delta_mqa linear_attention_gated_per_head_decay linear_attention_linear
        linear_attention_linear_t1_no_past linear_attention_no_past_explicit_zeros
        linear_attention_prefill_with_past
        """,
    ),
    (
        "there is no row for short convolutions yet",
        """
        causal_conv_with_state_b1_c1_degenerate causal_conv_with_state_basic causal_conv_with_state_decode_step
        causal_conv_with_state_fp16 causal_conv_with_state_kernel_size_one
        causal_conv_with_state_short_input_no_past_state causal_conv_with_state_silu
        causal_conv_with_state_silu_fp16 causal_conv_with_state_silu_with_past_state
        causal_conv_with_state_swish_alias causal_conv_with_state_with_bias
        causal_conv_with_state_with_bias_and_past_state causal_conv_with_state_with_past_state
        """,
    ),
)

REASONS: dict[str, str] = {name: reason for reason, names in LEFT_OUT for name in names.split()}
"""Name of a case -> why no row takes it."""
