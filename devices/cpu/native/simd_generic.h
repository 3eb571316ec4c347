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

  static void store_bf16(uint16_t* p, Vector v, int num) {
    for (int i = 0; i < num; i++) p[i] = to_bf16(v.lane[i]);
  }
};
