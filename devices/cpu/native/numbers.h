// Numbers of 16 bits, one at a time.
#pragma once
inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(uint16_t bf16) { return from_bits(static_cast<uint32_t>(bf16) << 16); }

// To the nearest, and of two as near to the even one; NaN stays NaN.
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// IEEE 754 binary16. The exponent is moved by a product, which takes numbers below the least normal one, too.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7FFF;
  if (rest >= 0x7C00) return from_bits(sign | 0x7F800000 | rest << 13);
  const float value = from_bits(rest << 13) * from_bits(0x77800000);  // 2^112
  return sign ? -value : value;
}

// Of 16 numbers; NaN where one is.
inline float largest_of(const float* lane) {
  float top = lane[0];
  for (int i = 1; i < 16; i++) top = top > lane[i] || top != top ? top : lane[i];
  return top;
}

// Of 16 numbers, halves added first.
inline float total_of(const float* lane) {
  float sum[8];
  for (int i = 0; i < 8; i++) sum[i] = lane[i] + lane[i + 8];
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; i++) sum[i] += sum[i + half];
  return sum[0];
}

// Added to a number below 2^22 it leaves the nearest integer in the last bits.
constexpr float SHIFT = 12582912.0f;
