// What works on each token by itself: norms, rope, activations. Included by variant.cpp, after Simd and exp.h.
//
// All arithmetic is float32, and each result is rounded once. A row's sums go by lanes, whatever is beside it.

constexpr int64_t MANY_NUMBERS = 1 << 15;  // from so many on threads share the rows: starting them costs as much

// Calls row(job, i) for i of [0, job.rows), on all threads where there is much to do.
template <class Job, void (*row)(const Job&, int64_t)>
void for_rows(const Job& job, int64_t columns) {
  const int num = job.rows * columns < MANY_NUMBERS ? 1 : num_threads();
  const Part some = [](const void* data, int part, int parts) {
    const Job& mine = *static_cast<const Job*>(data);
    for (int64_t i = mine.rows * part / parts; i < mine.rows * (part + 1) / parts; i++) row(mine, i);
  };
  run_parts(some, &job, num);
}

inline int lanes_from(int64_t at, int64_t size) { return static_cast<int>(size - at < LANES ? size - at : LANES); }

inline void norm_row(const Norm& job, int64_t row) {
  const uint16_t* x = job.x + row / job.inner * job.group_stride + row % job.inner * job.x_stride;
  uint16_t* y = job.y + row * job.columns;
  Simd::Vector squares = Simd::zero();
  if (job.residual) {
    uint16_t* residual = job.residual + row * job.columns;
    for (int64_t i = 0; i < job.columns; i += LANES) {
      const int num = lanes_from(i, job.columns);
      Simd::store_bf16(residual + i, Simd::add(Simd::from_bf16(x + i, num), Simd::from_bf16(residual + i, num)), num);
    }
    x = residual;
  }
  for (int64_t i = 0; i < job.columns; i += LANES) {
    const Simd::Vector some = Simd::from_bf16(x + i, lanes_from(i, job.columns));
    squares = Simd::multiply_add(some, some, squares);
  }
  const float mean = Simd::total(squares) / static_cast<float>(job.columns);
  const Simd::Vector scale = Simd::spread(1 / sqrtf(mean + job.eps));
  for (int64_t i = 0; i < job.columns; i += LANES) {
    const int num = lanes_from(i, job.columns);
    const Simd::Vector normed = Simd::multiply(Simd::from_bf16(x + i, num), scale);
    Simd::store_bf16(y + i, Simd::multiply(normed, Simd::from_bf16(job.w + i, num)), num);
  }
}

inline void norm(const Norm& job) { for_rows<Norm, norm_row>(job, job.columns); }

inline void turn_row(const Rope& job, int64_t token) {
  const uint16_t* cos = job.cos_sin + token * 2 * job.half;
  for (int64_t h = 0; h < job.heads; h++) {
    uint16_t* x = job.x + token * job.token_stride + h * job.head_stride;
    for (int64_t i = 0; i < job.half; i += LANES) {
      const int num = lanes_from(i, job.half);
      const Simd::Vector a = Simd::from_bf16(x + i, num), b = Simd::from_bf16(x + job.half + i, num);
      const Simd::Vector c = Simd::from_bf16(cos + i, num), s = Simd::from_bf16(cos + job.half + i, num);
      const Simd::Vector back = Simd::multiply(s, Simd::spread(-1));
      Simd::store_bf16(x + i, Simd::multiply_add(a, c, Simd::multiply(b, back)), num);
      Simd::store_bf16(x + job.half + i, Simd::multiply_add(b, c, Simd::multiply(a, s)), num);
    }
  }
}

inline void rope(const Rope& job) { for_rows<Rope, turn_row>(job, job.heads * 2 * job.half); }

// x / (1 + exp(-z)), with exp of a number up to 0.
inline Simd::Vector times_sigmoid(Simd::Vector x, Simd::Vector z) {
  const Simd::Vector minus = Simd::multiply(z, Simd::spread(-1));
  const Simd::Vector small = exp_down(Simd::minimum(minus, z));
  const Simd::Vector above = Simd::choose_below(z, 0, small, Simd::spread(1));
  return Simd::divide(Simd::multiply(x, above), Simd::add(small, Simd::spread(1)));
}

inline void act_row(const ActMul& job, int64_t row) {
  const uint16_t *gate = job.x + row * job.x_stride, *up = gate + job.columns;
  uint16_t* y = job.y + row * job.columns;
  for (int64_t i = 0; i < job.columns; i += LANES) {
    const int num = lanes_from(i, job.columns);
    const Simd::Vector x = Simd::from_bf16(gate + i, num);
    Simd::Vector z = x;
    if (job.gelu_tanh) {  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
      const Simd::Vector cubic = Simd::multiply_add(Simd::multiply(x, x), Simd::spread(0.044715f), Simd::spread(1));
      z = Simd::multiply(Simd::multiply(x, cubic), Simd::spread(1.5957691216f));  // 2 sqrt(2 / pi)
    }
    Simd::store_bf16(y + i, Simd::multiply(times_sigmoid(x, z), Simd::from_bf16(up + i, num)), num);
  }
}

inline void act_mul(const ActMul& job) { for_rows<ActMul, act_row>(job, job.columns); }
