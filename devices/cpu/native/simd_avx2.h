// AVX2 with FMA and F16C: sixteen columns are two registers.
#pragma once

struct Simd {
  static constexpr int ROWS = 4;
  struct Vector {
    __m256 first, last;
  };
  struct Pair {
    float even, odd;
  };
  struct Weights {
    Vector even, odd;
  };
  struct Broadcast {
    __m256 even, odd;
  };
  struct Codes {
    __m256i first, last;
  };

  static Vector zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vector load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, Vector v) {
    _mm256_storeu_ps(p, v.first);
    _mm256_storeu_ps(p + 8, v.last);
  }
  static Vector spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.first, b.first), _mm256_add_ps(a.last, b.last)}; }
  static Vector multiply(Vector a, Vector b) {
    return {_mm256_mul_ps(a.first, b.first), _mm256_mul_ps(a.last, b.last)};
  }
  static Vector divide(Vector a, Vector b) { return {_mm256_div_ps(a.first, b.first), _mm256_div_ps(a.last, b.last)}; }
  static Vector maximum(Vector a, Vector b) { return {_mm256_max_ps(a.first, b.first), _mm256_max_ps(a.last, b.last)}; }
  static Vector minimum(Vector a, Vector b) { return {_mm256_min_ps(a.first, b.first), _mm256_min_ps(a.last, b.last)}; }
  static Vector choose_below(Vector x, float limit, Vector yes, Vector no) {
    const __m256 least = _mm256_set1_ps(limit);
    return {_mm256_blendv_ps(no.first, yes.first, _mm256_cmp_ps(x.first, least, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.last, yes.last, _mm256_cmp_ps(x.last, least, _CMP_LT_OQ))};
  }
  static float largest(Vector v) {
    float lane[16];
    store(lane, v);
    return largest_of(lane);
  }
  static float total(Vector v) {
    float lane[16];
    store(lane, v);
    return total_of(lane);
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) {
    return {_mm256_fmadd_ps(a.first, b.first, c.first), _mm256_fmadd_ps(a.last, b.last, c.last)};
  }
  static Vector from_half(const uint16_t* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static Vector from_bf16(const uint16_t* p, int num) {
    float wide[16] = {};
    for (int i = 0; i < num; i++) wide[i] = to_float(p[i]);
    return load(wide);
  }

  static Vector only(Vector v, int begin, int end, float other) {
    float lane[16];
    store(lane, v);
    for (int i = 0; i < 16; i++) lane[i] = begin <= i && i < end ? lane[i] : other;
    return load(lane);
  }
  static Vector zero_below(Vector v, Vector x, float limit) {
    const __m256 least = _mm256_set1_ps(limit);
    return {_mm256_and_ps(v.first, _mm256_cmp_ps(x.first, least, _CMP_NLT_UQ)),
            _mm256_and_ps(v.last, _mm256_cmp_ps(x.last, least, _CMP_NLT_UQ))};
  }
  static Vector times_power(Vector v, Vector shifted) {
    return {add_exponent(v.first, shifted.first), add_exponent(v.last, shifted.last)};
  }

  static Pair pair(uint16_t even, uint16_t odd) { return {to_float(even), to_float(odd)}; }

  static Weights weights(const uint16_t* p) {
    const __m256i* both = reinterpret_cast<const __m256i*>(p);
    const __m256i first = _mm256_loadu_si256(both), last = _mm256_loadu_si256(both + 1);
    return {{evens(first), evens(last)}, {odds(first), odds(last)}};
  }

  static Weights weights(Codes codes, int index) {
    return {{numbers(codes.first, 4 * index), numbers(codes.last, 4 * index)},
            {numbers(codes.first, 4 * index + 16), numbers(codes.last, 4 * index + 16)}};
  }

  static Weights signed_weights(const uint8_t* p) {
    return {{signed_numbers(p), signed_numbers(p + 8)}, {signed_numbers(p + 16), signed_numbers(p + 24)}};
  }

  static Codes codes(const uint8_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
  }

  static Broadcast broadcast(const Pair* p) { return {_mm256_set1_ps(p->even), _mm256_set1_ps(p->odd)}; }
  static Vector dot(Vector sum, Weights w, Broadcast x) {
    return {_mm256_fmadd_ps(w.odd.first, x.odd, _mm256_fmadd_ps(w.even.first, x.even, sum.first)),
            _mm256_fmadd_ps(w.odd.last, x.odd, _mm256_fmadd_ps(w.even.last, x.even, sum.last))};
  }

  static Weights first_only(Weights w) { return {w.even, zero()}; }
  static Weights second_only(Weights w) { return {zero(), w.odd}; }
  static void store_pairs(Pair* p, Vector v) { store(&p->even, v); }

  static void store_bf16(uint16_t* p, Vector v, int num) {
    float wide[16];
    store(wide, v);
    for (int i = 0; i < num; i++) p[i] = to_bf16(wide[i]);
  }

 private:
  static __m256 add_exponent(__m256 v, __m256 shifted) {
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), power));
  }
  static __m256 evens(__m256i both) { return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)); }
  static __m256 odds(__m256i both) {
    return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
  }
  static __m256 signed_numbers(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static __m256 numbers(__m256i codes, int shift) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(codes, shift), _mm256_set1_epi32(15)));
  }
};
