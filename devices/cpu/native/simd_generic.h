// Plain C++: what any processor can do.
#pragma once

struct Simd {
  static constexpr int ROWS = 4;
  struct Vector {
    float lane[16];
  };
  struct Pair {
    float even, odd;
  };
  struct Weights {
    Vector even, odd;
  };
  using Broadcast = Pair;
  struct Codes {
    uint32_t lane[16];
  };

  static Vector zero() { return {}; }
  static Vector load(const float* p) {
    Vector v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, Vector v) { memcpy(p, &v, sizeof v); }
  static Vector spread(float value) {
    Vector v;
    for (float& lane : v.lane) lane = value;
    return v;
  }
  static Vector add(Vector a, Vector b) {
    for (int i = 0; i < 16; i++) a.lane[i] += b.lane[i];
    return a;
  }
  static Vector multiply(Vector a, Vector b) {
    for (int i = 0; i < 16; i++) a.lane[i] *= b.lane[i];
    return a;
  }
  static Vector divide(Vector a, Vector b) {
    for (int i = 0; i < 16; i++) a.lane[i] /= b.lane[i];
    return a;
  }
  static Vector maximum(Vector a, Vector b) {
    for (int i = 0; i < 16; i++) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
  }
  static Vector minimum(Vector a, Vector b) {
    for (int i = 0; i < 16; i++) a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
  }
  static Vector choose_below(Vector x, float limit, Vector yes, Vector no) {
    for (int i = 0; i < 16; i++) no.lane[i] = x.lane[i] < limit ? yes.lane[i] : no.lane[i];
    return no;
  }
  static float largest(Vector v) { return largest_of(v.lane); }
  static float total(Vector v) { return total_of(v.lane); }
  static Vector only(Vector v, int begin, int end, float other) {
    for (int i = 0; i < 16; i++) v.lane[i] = begin <= i && i < end ? v.lane[i] : other;
    return v;
  }
  static Vector zero_below(Vector v, Vector x, float limit) {
    for (int i = 0; i < 16; i++) v.lane[i] = x.lane[i] < limit ? 0 : v.lane[i];
    return v;
  }
  static Vector times_power(Vector v, Vector shifted) {
    for (int i = 0; i < 16; i++) {
      uint32_t bits, power;
      memcpy(&bits, &v.lane[i], sizeof bits);
      memcpy(&power, &shifted.lane[i], sizeof power);
      v.lane[i] = from_bits(bits + (power << 23));
    }
    return v;
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) {
    for (int i = 0; i < 16; i++) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
  }
  static Vector from_half(const uint16_t* p) {
    Vector v;
    for (int i = 0; i < 16; i++) v.lane[i] = half_to_float(p[i]);
    return v;
  }
  static Vector from_bf16(const uint16_t* p, int num) {
    Vector v = {};
    for (int i = 0; i < num; i++) v.lane[i] = to_float(p[i]);
    return v;
  }

  static Pair pair(uint16_t even, uint16_t odd) { return {to_float(even), to_float(odd)}; }

  static Weights weights(const uint16_t* p) {
    Weights w;
    for (int i = 0; i < 16; i++) {
      w.even.lane[i] = to_float(p[2 * i]);
      w.odd.lane[i] = to_float(p[2 * i + 1]);
    }
    return w;
  }

  static Weights weights(Codes codes, int index) {
    Weights w;
    for (int i = 0; i < 16; i++) {
      w.even.lane[i] = static_cast<float>(codes.lane[i] >> (4 * index) & 15);
      w.odd.lane[i] = static_cast<float>(codes.lane[i] >> (4 * index + 16) & 15);
    }
    return w;
  }

  static Weights signed_weights(const uint8_t* p) {
    Weights w;
    for (int i = 0; i < 16; i++) {
      w.even.lane[i] = static_cast<int8_t>(p[i]);
      w.odd.lane[i] = static_cast<int8_t>(p[16 + i]);
    }
    return w;
  }

  static Codes codes(const uint8_t* p) {
    Codes codes;
    memcpy(&codes, p, sizeof codes);
    return codes;
  }

  static Broadcast broadcast(const Pair* p) { return *p; }
  static Vector dot(Vector sum, Weights w, Broadcast x) {
    for (int i = 0; i < 16; i++) sum.lane[i] = sum.lane[i] + w.even.lane[i] * x.even + w.odd.lane[i] * x.odd;
    return sum;
  }

  static Weights first_only(Weights w) { return {w.even, zero()}; }
  static Weights second_only(Weights w) { return {zero(), w.odd}; }
  static void store_pairs(Pair* p, Vector v) { memcpy(p, &v, sizeof v); }

  static void store_bf16(uint16_t* p, Vector v, int num) {
    for (int i = 0; i < num; i++) p[i] = to_bf16(v.lane[i]);
  }
};
