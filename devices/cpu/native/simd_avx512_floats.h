// Sixteen float32 numbers in AVX-512, one for each column of a strip.
#pragma once

struct Floats512 {
  using Vector = __m512;

  static __mmask16 mask(int num) { return static_cast<__mmask16>((1u << num) - 1); }
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static Vector spread(float value) { return _mm512_set1_ps(value); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector maximum(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static float largest(Vector v) { return _mm512_reduce_max_ps(v); }
  static float total(Vector v) { return _mm512_reduce_add_ps(v); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector from_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vector from_bf16(const uint16_t* p, int num) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(num), p)), 16));
  }
  static Vector signed_numbers(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static __m256i rounded(Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, near, quiet), 16));
  }
  static void store_bf16(uint16_t* p, Vector v, int num) { _mm256_mask_storeu_epi16(p, mask(num), rounded(v)); }
  static Vector minimum(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static Vector choose_below(Vector x, float limit, Vector yes, Vector no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ), yes);
  }
  static Vector only(Vector v, int begin, int end, float other) {
    return _mm512_mask_mov_ps(_mm512_set1_ps(other), static_cast<__mmask16>(mask(end) & ~mask(begin)), v);
  }
  static Vector zero_below(Vector v, Vector x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), v);
  }
  static Vector times_power(Vector v, Vector shifted) {
    return _mm512_scalef_ps(v, _mm512_sub_ps(shifted, _mm512_set1_ps(SHIFT)));
  }
};
