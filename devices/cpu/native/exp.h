// exp of numbers up to 0, to 2 in the last place of float32; below -87 it is 0. NaN stays NaN.
// Source: Moshier, Cephes, single/expf.c (reduction and polynomial).

inline Simd::Vector exp_down(Simd::Vector x) {
  const Simd::Vector bounded = Simd::maximum(Simd::spread(-87.0f), x);  // of two the second, where one is NaN
  const Simd::Vector shifted = Simd::multiply_add(bounded, Simd::spread(1.44269504f), Simd::spread(SHIFT));
  const Simd::Vector power = Simd::add(shifted, Simd::spread(-SHIFT));
  Simd::Vector f = Simd::multiply_add(power, Simd::spread(-0.693359375f), bounded);
  f = Simd::multiply_add(power, Simd::spread(2.12194440e-4f), f);
  Simd::Vector y = Simd::spread(1.9875691500e-4f);
  const float rest[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  for (const float c : rest) y = Simd::multiply_add(y, f, Simd::spread(c));
  y = Simd::multiply_add(y, Simd::multiply(f, f), Simd::add(f, Simd::spread(1)));
  return Simd::zero_below(Simd::times_power(y, shifted), x, -87.0f);
}
