// y = x W^T + b for weights in tile order. Included by variant.cpp, after Simd, in an unnamed namespace.
//
// Tile order. A strip is 16 rows of the weight, which are 16 columns of y; a group is 4 strips. Along K a weight is cut
// into units. All units of a group follow each other, and in each the 4 strips:
//   weight[group][unit][strip in group][Format::UNIT_BYTES]
// so that a product of few tokens reads memory once, from end to end. Strips are filled up with zeros.
//
// How it works. Each part of a job has some strips, and takes all tokens: a chunk of tokens at a time, which is copied
// into blocks of Simd::ROWS tokens, pairs of K side by side. For each block and group, sums stay in registers along K.
//
// What a token's result is does not depend on the others: every sum goes along K in one order, in one accumulator (of
// q4_1 and q8_0: one for each unit, added up in order), whatever the block.
//
// Legend: K and N as in core/kernels/table.py, M tokens of a block, S strips at a time.

constexpr int64_t STRIPS = 4, LANES = 16;
constexpr int64_t CHUNK_BYTES = 384 << 10;  // of x at a time: with a group's weights it fits the second cache
constexpr int64_t DEPTH_BYTES = 256 << 10;  // of a group's weights at a time, when there are several blocks
constexpr int AHEAD_BYTES = 2048;           // weights are asked for so far ahead: 1024 to 4096 are as good

// bfloat16. A unit is a pair of K: [16 rows][2].
struct Bf16 {
  static constexpr int64_t UNIT_K = 2, UNIT_BYTES = 64, UNIT_SUMS = 0;

  template <int M, int S>
  static void add(Simd::Vector (&sum)[M][S], const uint8_t* w, const char* x) {
    Simd::Broadcast pairs[M];
    for (int m = 0; m < M; m++) pairs[m] = Simd::broadcast(reinterpret_cast<const Simd::Pair*>(x) + m);
    for (int s = 0; s < S; s++) {
      const Simd::Weights strip = Simd::weights(reinterpret_cast<const uint16_t*>(w + s * UNIT_BYTES));
      for (int m = 0; m < M; m++) sum[m][s] = Simd::dot(sum[m][s], strip, pairs[m]);
    }
  }
};

// q4_1 of core/kernels/schemes.py. A unit is a block of 32 weights of each of 16 rows: codes as 4 times [16 rows] words
// of 32 bits, then scales [16] and minima [16] in float16. Of a word, the lower half has the codes of 4 even k, and the
// upper half those of 4 odd k, lowest bits first.
struct Q41 {
  static constexpr int64_t CODE_BYTES = 256, UNIT_BYTES = 320, UNIT_SUMS = 1;

  static Simd::Weights weights(const uint8_t* w, int word, int i) { return Simd::weights(Simd::codes(w + 64 * word), i); }
};

// q8_0 of the same. A unit is a block, too: for each pair of k the codes of the even one [16] and of the odd one [16],
// then scales [16] in float16.
struct Q80 {
  static constexpr int64_t CODE_BYTES = 512, UNIT_BYTES = 544, UNIT_SUMS = 0;

  static Simd::Weights weights(const uint8_t* w, int word, int i) {
    return Simd::signed_weights(w + 2 * LANES * (4 * word + i));
  }
};

// Weights of codes, in blocks. Products of codes are summed in float32 and then scaled, so nothing is rounded but sums;
// the minimum, where there is one, meets the sum of the block's x. Codes are unpacked anew for each block of tokens: to
// unpack them once for many was slower, because most of it is done beside products.
template <class Form>
struct Coded : Form {
  static constexpr int64_t UNIT_K = 32;

  template <int M, int S>
  static void add(Simd::Vector (&sum)[M][S], const uint8_t* w, const char* x) {
    const Simd::Pair* pairs = reinterpret_cast<const Simd::Pair*>(x);
    const float* sums_of_x = reinterpret_cast<const float*>(pairs + UNIT_K / 2 * M);
    for (int s = 0; s < S; s++, w += Form::UNIT_BYTES) {
      Simd::Vector block[M];
      for (int m = 0; m < M; m++) block[m] = Simd::zero();
      for (int word = 0; word < 4; word++) {
        for (int i = 0; i < 4; i++) {
          const Simd::Weights strip = Form::weights(w, word, i);
          for (int m = 0; m < M; m++) block[m] = Simd::dot(block[m], strip, Simd::broadcast(pairs + (4 * word + i) * M + m));
        }
      }
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(w + Form::CODE_BYTES);
      const Simd::Vector scale = Simd::from_half(halves);
      for (int m = 0; m < M; m++) sum[m][s] = Simd::multiply_add(scale, block[m], sum[m][s]);
      if constexpr (Form::UNIT_SUMS != 0) {
        const Simd::Vector minimum = Simd::from_half(halves + LANES);
        for (int m = 0; m < M; m++) sum[m][s] = Simd::multiply_add(minimum, Simd::spread(sums_of_x[m]), sum[m][s]);
      }
    }
  }
};

struct Job {
  const uint8_t* weight;
  int64_t n, k, units;
  const uint16_t* x;
  int64_t rows, row_stride;
  const uint16_t* bias;
  uint16_t* y;
  int64_t chunk_rows, depth;  // tokens and units at a time
  char* scratch;
  int64_t part_bytes;  // of scratch
};

// Bytes of a token's copied x in one unit.
template <class Format>
constexpr int64_t x_bytes() {
  return Format::UNIT_K / 2 * int64_t{sizeof(Simd::Pair)} + Format::UNIT_SUMS * int64_t{sizeof(float)};
}

// Copies `num` tokens to `to`: [unit][pair in unit][token], and in each unit, if the format asks, their sums [token].
template <class Format>
void copy_block(const Job& job, int64_t first, int num, char* to) {
  for (int m = 0; m < num; m++) {
    const uint16_t* x = job.x + (first + m) * job.row_stride;
    char* unit = to;
    for (int64_t k = 0; k < job.k; unit += num * x_bytes<Format>()) {
      Simd::Pair* pairs = reinterpret_cast<Simd::Pair*>(unit);
      float even = 0, odd = 0;
      for (int64_t end = k + Format::UNIT_K; k < end; k += 2, pairs += num) {
        const uint16_t second = k + 1 < job.k ? x[k + 1] : 0;
        pairs[m] = Simd::pair(x[k], second);
        if (Format::UNIT_SUMS) even += to_float(x[k]), odd += to_float(second);
      }
      if (Format::UNIT_SUMS) reinterpret_cast<float*>(pairs)[m] = even + odd;
    }
  }
}

// Where a block's sums begin and end.
struct Block {
  const uint8_t* w;
  const char* x;
  int64_t units;
  float* sums;  // [M][S][16], between depths
  bool first, last;
  int64_t row, column;  // of y
};

template <class Format, int M, int S>
void multiply(const Job& job, const Block& block) {
  Simd::Vector sum[M][S];
  for (int m = 0; m < M; m++)
    for (int s = 0; s < S; s++) sum[m][s] = block.first ? Simd::zero() : Simd::load(block.sums + (m * S + s) * LANES);
  const uint8_t* w = block.w;
  const char* x = block.x;
  for (int64_t unit = 0; unit < block.units; unit++) {
    for (int64_t byte = 0; byte < S * Format::UNIT_BYTES; byte += 64) __builtin_prefetch(w + AHEAD_BYTES + byte);
    Format::template add<M, S>(sum, w, x);
    w += STRIPS * Format::UNIT_BYTES;
    x += M * x_bytes<Format>();
  }
  for (int s = 0; s < S; s++) {
    const int64_t column = block.column + s * LANES;
    const int num = static_cast<int>(job.n - column < LANES ? job.n - column : LANES);
    if (block.last && num <= 0) break;
    for (int m = 0; m < M; m++) {
      if (!block.last) {
        Simd::store(block.sums + (m * S + s) * LANES, sum[m][s]);
        continue;
      }
      if (job.bias) sum[m][s] = Simd::add(sum[m][s], Simd::from_bf16(job.bias + column, num));
      Simd::store_bf16(job.y + (block.row + m) * job.n + column, sum[m][s], num);
    }
  }
}

template <class Format, int S, int M = Simd::ROWS>
void multiply_rows(const Job& job, const Block& block, int rows) {
  if constexpr (M > 0) {
    if (rows == M) return multiply<Format, M, S>(job, block);
    multiply_rows<Format, S, M - 1>(job, block, rows);
  }
}

// Strips [strip, strip + S) of one group, for tokens [first, last), which are copied to x.
template <class Format, int S>
void multiply_strips(const Job& job, int64_t strip, int64_t first, int64_t last, const char* x, float* sums) {
  const int64_t group_bytes = STRIPS * Format::UNIT_BYTES * job.units;
  const uint8_t* w = job.weight + strip / STRIPS * group_bytes + strip % STRIPS * Format::UNIT_BYTES;
  for (int64_t unit = 0; unit < job.units; unit += job.depth) {
    const int64_t left = job.units - unit, units = left < job.depth ? left : job.depth;
    for (int64_t row = first; row < last; row += Simd::ROWS) {
      const int rows = static_cast<int>(last - row < Simd::ROWS ? last - row : Simd::ROWS);
      const Block block = {w + unit * STRIPS * Format::UNIT_BYTES,
                           x + ((row - first) * job.units + rows * unit) * x_bytes<Format>(),
                           units,
                           sums + (row - first) * STRIPS * LANES,
                           unit == 0,
                           left == units,
                           row,
                           strip * LANES};
      multiply_rows<Format, S>(job, block, rows);
    }
  }
}

template <class Format>
void multiply_part(const void* data, int part, int num) {
  const Job& job = *static_cast<const Job*>(data);
  const int64_t strips = (job.n + LANES - 1) / LANES;
  const int64_t begin = strips * part / num, end = strips * (part + 1) / num;
  float* sums = reinterpret_cast<float*>(job.scratch + part * job.part_bytes);
  char* x = reinterpret_cast<char*>(sums + job.chunk_rows * STRIPS * LANES);
  for (int64_t first = 0; first < job.rows; first += job.chunk_rows) {
    const int64_t last = first + job.chunk_rows < job.rows ? first + job.chunk_rows : job.rows;
    for (int64_t row = first; row < last; row += Simd::ROWS) {
      const int rows = static_cast<int>(last - row < Simd::ROWS ? last - row : Simd::ROWS);
      copy_block<Format>(job, row, rows, x + (row - first) * job.units * x_bytes<Format>());
    }
    for (int64_t strip = begin; strip < end;) {
      if (strip % STRIPS == 0 && strip + STRIPS <= end) {
        multiply_strips<Format, STRIPS>(job, strip, first, last, x, sums);
        strip += STRIPS;
      } else {
        multiply_strips<Format, 1>(job, strip, first, last, x, sums);
        strip += 1;
      }
    }
  }
}

template <class Format>
int linear(const void* weight, int64_t n, int64_t k, const uint16_t* x, int64_t rows, int64_t row_stride,
           const uint16_t* bias, uint16_t* y) {
  if (rows == 0 || n == 0) return 0;
  const int64_t units = (k + Format::UNIT_K - 1) / Format::UNIT_K;
  const int64_t token_bytes = units * x_bytes<Format>();
  int64_t chunk = CHUNK_BYTES / (token_bytes + 1) / Simd::ROWS * Simd::ROWS;
  chunk = chunk < Simd::ROWS ? Simd::ROWS : chunk;
  chunk = rows < chunk ? rows : chunk;
  const int64_t depth = rows <= Simd::ROWS ? units : DEPTH_BYTES / (STRIPS * Format::UNIT_BYTES);
  const int64_t strips = (n + LANES - 1) / LANES;
  const int num = num_threads() < strips ? num_threads() : static_cast<int>(strips);
  const int64_t part_bytes = (chunk * (STRIPS * LANES * int64_t{sizeof(float)} + token_bytes) + 63) / 64 * 64;
  char* scratch = static_cast<char*>(aligned_alloc(64, static_cast<size_t>(num * part_bytes)));
  if (!scratch) return 1;
  const Job job = {static_cast<const uint8_t*>(weight), n, k, units, x, rows, row_stride, bias, y, chunk, depth, scratch,
                   part_bytes};
  run_parts(multiply_part<Format>, &job, num);
  free(scratch);
  return 0;
}
