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

  static Weights signed_weights(const uint8_t* p) { return {signed_numbers(p), signed_numbers(p + 16)}; }

  static Codes codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Broadcast broadcast(const Pair* p) { return {_mm512_set1_ps(p->even), _mm512_set1_ps(p->odd)}; }
  static Vector dot(Vector sum, Weights w, Broadcast x) {
    return _mm512_fmadd_ps(w.odd, x.odd, _mm512_fmadd_ps(w.even, x.even, sum));
  }

  static Weights first_only(Weights w) { return {w.even, zero()}; }
  static Weights second_only(Weights w) { return {zero(), w.odd}; }
  static void store_pairs(Pair* p, Vector v) { store(&p->even, v); }
};
