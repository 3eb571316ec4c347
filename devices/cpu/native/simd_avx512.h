// AVX-512 without instructions for bfloat16: pairs are two float32.
#pragma once
#include "simd_avx512_floats.h"

struct Simd : Floats512 {
  static constexpr int ROWS = 4;
  struct Pair {
    float even, odd;
  };
  struct Weights {
    __m512 even, odd;
  };
  using Broadcast = Weights;
  using Codes = __m512i;

  static Pair pair(uint16_t even, uint16_t odd) { return {to_float(even), to_float(odd)}; }

  static Weights weights(const uint16_t* p) {
    const __m512i both = _mm512_loadu_si512(p);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), _mm512_castsi512_ps(_mm512_and_si512(both, upper))};
  }

  static Weights weights(Codes codes, int index) {
    const __m512i lower = _mm512_set1_epi32(15);
    return {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(codes, 4 * index), lower)),
            _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(codes, 4 * index + 16), lower))};
  }

  static Codes codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Broadcast broadcast(const Pair* p) { return {_mm512_set1_ps(p->even), _mm512_set1_ps(p->odd)}; }
  static Vector dot(Vector sum, Weights w, Broadcast x) {
    return _mm512_fmadd_ps(w.odd, x.odd, _mm512_fmadd_ps(w.even, x.even, sum));
  }

  static Weights first_only(Weights w) { return {w.even, zero()}; }
  static Weights second_only(Weights w) { return {zero(), w.odd}; }
  static void store_pairs(Pair* p, Vector v) { store(&p->even, v); }

  static __m256i round(Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, near, quiet), 16));
  }
  static void store_bf16(uint16_t* p, Vector v, int num) {
    _mm256_mask_storeu_epi16(p, mask(num), round(v));
  }
};
