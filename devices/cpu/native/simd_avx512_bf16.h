// AVX-512 with instructions for bfloat16: a product of pairs is one instruction. It takes numbers below the least normal
// float32 as 0.
#pragma once
#include "simd_avx512_floats.h"

struct Simd : Floats512 {
  static constexpr int ROWS = 6;
  using Pair = uint32_t;  // two bfloat16
  using Weights = __m512bh;
  using Codes = __m512i;  // of 8 weights of each column

  static Pair pair(uint16_t even, uint16_t odd) { return even | static_cast<uint32_t>(odd) << 16; }

  static Weights weights(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

  static Weights weights(Codes codes, int index) {
    // Codes 0 to 15 as bfloat16, twice: the instruction looks at 5 bits, the lower 4 of which are the code.
    const __m512i half = _mm512_castsi256_si512(_mm256_setr_epi16(
        0, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150,
        0x4160, 0x4170));
    const __m512i table = _mm512_inserti64x4(half, _mm512_castsi512_si256(half), 1);
    return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * index), table);
  }

  static Weights signed_weights(const uint8_t* p) {
    // The upper halves of float32 numbers, even and odd by turns: the lower ones of such small integers are 0.
    const __m512i even = _mm512_castps_si512(signed_numbers(p)), odd = _mm512_castps_si512(signed_numbers(p + 16));
    return (__m512bh)_mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
  }

  static Codes codes(const uint8_t* p) { return _mm512_loadu_si512(p); }

  struct Broadcast {
    __m512bh both;
  };
  static Broadcast broadcast(const Pair* p) { return {(__m512bh)_mm512_set1_epi32(static_cast<int>(*p))}; }
  static Vector dot(Vector sum, Weights w, Broadcast x) { return _mm512_dpbf16_ps(sum, w, x.both); }

  static Weights first_only(Weights w) { return (__m512bh)_mm512_and_si512((__m512i)w, _mm512_set1_epi32(0xFFFF)); }
  static Weights second_only(Weights w) {
    return (__m512bh)_mm512_and_si512((__m512i)w, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
  }
  static void store_pairs(Pair* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
  }
};
