// y = x W^T + b for bfloat16 weights, by the tile registers of AMX. Included by variant.cpp, after linear.h.
//
// A tile register holds 16 rows of 64 bytes. One instruction adds the product of two of them, 16 tokens times 32 of K and
// 32 of K times a strip, to a third. The tile order of linear.h is what it takes, 16 units at a time, so weights are read
// from where they lie, and tokens, too. Where K is no multiple of 32, the rest of both is copied, and filled up with zeros.
//
// How it works. Each part of a job has some pairs of strips, and takes tokens in tiles of 16, two at a time: four sums of
// 16 x 16. Two tiles of tokens meet WIDE pairs in turn, so that y is written some hundred bytes at a time, and all of
// these stay in the second cache. The last tile begins early enough to be full: what is computed anew comes out the
// same. A tile that is alone meets the strips of a group together, to read memory from end to end; with fewer than 16
// tokens, registers have as many rows.
//
// What a token's result is does not depend on the others: every sum goes along K in one order, in one register, and the
// instruction adds the terms of each of its rows in one order, those of even and of odd k apart. Numbers below the least
// normal float32 count as 0. Source: Intel, Architecture Instruction Set Extensions Programming Reference, TDPBF16PS.

constexpr int64_t TILE_ROWS = 16, TILE_UNITS = 16, TILE_K = 32, TILE_BYTES = 1024, TILE_SUMS = TILE_ROWS * LANES;
constexpr int64_t PAIR = 2 * LANES, UNIT_STRIDE = STRIPS * Bf16::UNIT_BYTES;
constexpr int64_t WIDE = 4;             // pairs that two tiles of tokens meet in turn: 8 were as good, 2 worse
constexpr int64_t MOST_UNITS = 1024;    // of WIDE pairs at a time: 512 KiB
constexpr int64_t X_BYTES = 768 << 10;  // of x at a time, beside them

// Tile instructions read memory, which the compiler does not know.
inline void finish_stores() { __asm__ volatile("" ::: "memory"); }

// Registers 0 to 3 are sums, 4 and 5 tokens, with `rows` rows; 6 and 7 are weights. Source: as above, LDTILECFG.
inline void shape_registers(int64_t rows) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = static_cast<uint8_t>(i < 6 ? rows : TILE_UNITS);
  finish_stores();
  _tile_loadconfig(&shapes);
}

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Sums lie as [tile of tokens][strip][token][column], with two of each or four strips.
inline void load_sums(const float* sums) {
  finish_stores();
  _tile_loadd(0, sums, 64);
  _tile_loadd(1, sums + TILE_SUMS, 64);
  _tile_loadd(2, sums + 2 * TILE_SUMS, 64);
  _tile_loadd(3, sums + 3 * TILE_SUMS, 64);
}

inline void store_sums(float* sums) {
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + TILE_SUMS, 64);
  _tile_stored(2, sums + 2 * TILE_SUMS, 64);
  _tile_stored(3, sums + 3 * TILE_SUMS, 64);
}

// Some of K: where tokens of up to two tiles and weights begin, how far rows of x are apart, and how many times 32.
struct Along {
  const char *x[2], *w;
  int64_t x_stride, num;
};

// Adds products of two tiles of tokens and two strips.
inline void add_two_by_two(const Along& k) {
  const char *one = k.x[0], *other = k.x[1], *w = k.w;
  for (int64_t i = 0; i < k.num; i++, one += 64, other += 64, w += STRIPS * TILE_BYTES) {
    _tile_loadd(4, one, k.x_stride);
    _tile_loadd(6, w, UNIT_STRIDE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + Bf16::UNIT_BYTES, UNIT_STRIDE);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, other, k.x_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Adds products of one tile of tokens and two strips, or four.
inline void add_to_one(const Along& k, int64_t strips) {
  const char *x = k.x[0], *w = k.w;
  for (int64_t i = 0; i < k.num; i++, x += 64, w += STRIPS * TILE_BYTES) {
    for (int64_t byte = 0; byte < STRIPS * TILE_BYTES; byte += 64) __builtin_prefetch(w + AHEAD_BYTES + byte);
    _tile_loadd(4, x, k.x_stride);
    _tile_loadd(6, w, UNIT_STRIDE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + Bf16::UNIT_BYTES, UNIT_STRIDE);
    _tile_dpbf16ps(1, 4, 7);
    if (strips < STRIPS) continue;
    _tile_loadd(6, w + 2 * Bf16::UNIT_BYTES, UNIT_STRIDE);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, w + 3 * Bf16::UNIT_BYTES, UNIT_STRIDE);
    _tile_dpbf16ps(3, 4, 7);
  }
}

inline int64_t tile_rows(const Job& job) { return job.rows < TILE_ROWS ? job.rows : TILE_ROWS; }

inline int64_t first_row(const Job& job, int64_t tile) {
  const int64_t row = tile * TILE_ROWS, last = job.rows - tile_rows(job);
  return row < last ? row : last;
}

// Of x, what is left of K behind the last whole 32, filled up with zeros: [token][32].
inline void copy_rest(const Job& job, int64_t tile, char* to) {
  const int64_t whole = job.k / TILE_K * TILE_K;
  memset(to, 0, TILE_BYTES);
  for (int64_t m = 0; m < tile_rows(job); m++)
    memcpy(to + m * 64, job.x + (first_row(job, tile) + m) * job.row_stride + whole, static_cast<size_t>(2 * (job.k - whole)));
}

// One tile or two tiles of tokens, from `tile` on, and two strips, or four where there is one tile.
struct Square {
  int64_t tile, tiles, strip, strips;
  const char* rest;  // copy_rest of the first tile, before that of the second
};

// Adds units [unit, unit + num) of K.
inline void add_units(const Job& job, const Square& square, int64_t unit, int64_t num) {
  const int64_t group = square.strip / STRIPS, in_group = square.strip % STRIPS * Bf16::UNIT_BYTES;
  const int64_t most = job.k - 2 * unit < 2 * num ? job.k - 2 * unit : 2 * num;
  Along k = {{}, reinterpret_cast<const char*>(job.weight) + (group * job.units + unit) * UNIT_STRIDE + in_group,
             2 * job.row_stride, most / TILE_K};
  for (int i = 0; i < square.tiles; i++)
    k.x[i] = reinterpret_cast<const char*>(job.x + first_row(job, square.tile + i) * job.row_stride + 2 * unit);
  square.tiles == 2 ? add_two_by_two(k) : add_to_one(k, square.strips);
  if (most % TILE_K == 0) return;
  const int64_t left = num - k.num * TILE_UNITS;
  alignas(64) char weights[STRIPS * TILE_BYTES] = {};
  memcpy(weights, k.w - in_group + k.num * STRIPS * TILE_BYTES, static_cast<size_t>(left * UNIT_STRIDE));
  for (int i = 0; i < square.tiles; i++) k.x[i] = square.rest + i * TILE_BYTES;
  k.w = weights + in_group, k.x_stride = 64, k.num = 1;
  finish_stores();
  square.tiles == 2 ? add_two_by_two(k) : add_to_one(k, square.strips);
}

// Writes two strips of y, from `strip` on, for one tile: with the bias, rounded.
inline void finish_tile(const Job& job, int64_t tile, int64_t strip, const float* sums) {
  const int64_t column = strip * LANES, left = job.n - column < PAIR ? job.n - column : PAIR;
  if (left <= 0) return;
  const int first = static_cast<int>(left < LANES ? left : LANES), second = static_cast<int>(left) - first;
  const __mmask32 mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
  const Simd::Vector low = job.bias ? Simd::from_bf16(job.bias + column, first) : Simd::zero();
  const Simd::Vector high = job.bias ? Simd::from_bf16(job.bias + column + first, second) : Simd::zero();
  uint16_t* y = job.y + first_row(job, tile) * job.n + column;
  for (int64_t m = 0; m < tile_rows(job); m++, y += job.n) {
    const Simd::Vector a = Simd::add(Simd::load(sums + m * LANES), low);
    const Simd::Vector b = Simd::add(Simd::load(sums + TILE_SUMS + m * LANES), high);
    _mm512_mask_storeu_epi16(y, mask, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
}

inline void finish(const Job& job, const Square& square, const float* sums) {
  finish_tile(job, square.tile, square.strip, sums);
  if (square.tiles == 2) finish_tile(job, square.tile + 1, square.strip, sums + 2 * TILE_SUMS);
  if (square.strips == STRIPS) finish_tile(job, square.tile, square.strip + 2, sums + 2 * TILE_SUMS);
}

// Pairs [pair, end) for tiles [first, last). Sums between depths are [two tiles][pair] of 4 tiles each.
inline void multiply_pairs(const Job& job, int64_t pair, int64_t end, int64_t first, int64_t last, const char* rest,
                           float* sums) {
  alignas(64) float here[4 * TILE_SUMS];
  for (int64_t unit = 0; unit < job.units; unit += job.depth) {
    const int64_t num = job.units - unit < job.depth ? job.units - unit : job.depth;
    for (int64_t tile = first; tile < last; tile += 2) {
      for (int64_t p = pair; p < end;) {
        const int64_t tiles = last - tile < 2 ? 1 : 2, strips = tiles == 1 && p % 2 == 0 && p + 1 < end ? STRIPS : 2;
        const Square square = {tile, tiles, 2 * p, strips, rest + (tile - first) * TILE_BYTES};
        float* kept = num == job.units ? here : sums + ((tile - first) / 2 * WIDE + p - pair) * 4 * TILE_SUMS;
        unit ? load_sums(kept) : clear_sums();
        add_units(job, square, unit, num);
        store_sums(kept);
        if (unit + num == job.units) finish(job, square, kept);
        p += strips / 2;
      }
    }
  }
}

inline void multiply_tiles(const void* data, int part, int num) {
  const Job& job = *static_cast<const Job*>(data);
  const int64_t pairs = (job.n + PAIR - 1) / PAIR, tiles = (job.rows + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t begin = pairs * part / num, end = pairs * (part + 1) / num, chunk = job.chunk_rows / TILE_ROWS;
  char* rest = job.scratch + part * job.part_bytes;
  float* sums = reinterpret_cast<float*>(rest + chunk * TILE_BYTES);
  shape_registers(tile_rows(job));
  for (int64_t first = 0; first < tiles; first += chunk) {
    const int64_t last = tiles - first < chunk ? tiles : first + chunk;
    for (int64_t tile = first; tile < last && job.k % TILE_K; tile++)
      copy_rest(job, tile, rest + (tile - first) * TILE_BYTES);
    for (int64_t pair = begin, next; pair < end; pair = next) {
      next = (pair / WIDE + 1) * WIDE < end ? (pair / WIDE + 1) * WIDE : end;
      multiply_pairs(job, pair, next, first, last, rest, sums);
    }
  }
  _tile_release();
}

inline int linear_tiles(const void* weight, int64_t n, int64_t k, const uint16_t* x, int64_t rows, int64_t row_stride,
                        const uint16_t* bias, uint16_t* y) {
  if (rows == 0 || n == 0) return 0;
  const int64_t units = (k + 1) / 2, pairs = (n + PAIR - 1) / PAIR, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  int64_t chunk = X_BYTES / (2 * TILE_ROWS * k + 1) / 2 * 2;
  chunk = chunk < 2 ? 2 : chunk;
  chunk = tiles < chunk ? tiles : chunk;
  const int64_t depth = units < MOST_UNITS || rows <= TILE_ROWS ? units : MOST_UNITS;
  const int64_t kept = depth < units ? (chunk + 1) / 2 * WIDE * 4 * TILE_SUMS * int64_t{sizeof(float)} : 0;
  const int num = num_threads() < pairs ? num_threads() : static_cast<int>(pairs);
  const int64_t part_bytes = chunk * TILE_BYTES + kept;
  char* scratch = static_cast<char*>(aligned_alloc(64, static_cast<size_t>(num * part_bytes)));
  if (!scratch) return 1;
  const Job job = {static_cast<const uint8_t*>(weight), n, k, units, x, rows, row_stride, bias, y, chunk * TILE_ROWS, depth,
                   scratch, part_bytes};
  run_parts(multiply_tiles, &job, num);
  free(scratch);
  return 0;
}
