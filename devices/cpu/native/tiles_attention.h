// Attention by the tile registers of AMX: blocks of 16 rows. Included by attention.h, after Rows and Keys.
//
// A block meets strips of 16 keys: q with 32 of D at a time, and 16 where that is what is left; then weights of 16 keys,
// which is what lies together of values, with strips of D. What lies between is done for all rows of a block at once.
// Where some rows do not see all of the keys, values are copied, with zeros in the place of what nobody sees. What a row
// does not see has the weight 0, and adds nothing while it is finite. Where it is not, each row of the block has a copy of
// its own: so its sums are the same whatever others see.

constexpr int BLOCKS = 4;
constexpr int64_t MAX_STRIPS = MAX_HEAD / LANES;

// What a block of rows has so far. Sums and scores lie as [strip][row][16].
struct State {
  alignas(64) float out[MAX_STRIPS * TILE_SUMS];
  uint16_t q[MAX_STRIPS / 2][MOST_ROWS][2 * LANES];
  uint16_t weights[MOST_ROWS][KEYS];
  float top[MOST_ROWS], fade[MOST_ROWS];  // the greatest score; by how much what was there before counts less
  Simd::Vector total[MOST_ROWS];          // of weights, by lane
};

// Values with zeros in some places: strips [begin, end) of KEYS keys.
struct Copy {
  alignas(64) uint8_t values[KEYS / LANES][LANES * MAX_HEAD * 2];
  int begin, end;
  bool finite;
};

// Registers 0 to 3 are sums, 4 and 5 rows of q or weights, 6 and 7 keys or values; 5 and 7 have half of K.
inline void shape_attention(int rows) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
    uint8_t rows[16] = {};
  } shapes;
  for (int i = 0; i < 6; i++) shapes.rows[i] = static_cast<uint8_t>(rows);
  shapes.rows[6] = TILE_UNITS, shapes.rows[7] = TILE_UNITS / 2;
  finish_stores();
  _tile_loadconfig(&shapes);
}

// Products of q and keys, of all rows of a block.
inline void score_tiles(const State& state, const uint8_t* const* keys, int64_t head_size, float* scores) {
  clear_sums();
  int64_t d = 0;
  for (; d + TILE_K <= head_size; d += TILE_K) {
    _tile_loadd(4, state.q[d / TILE_K], 64);
    _tile_loadd(6, keys[0] + 32 * d, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(6, keys[1] + 32 * d, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(6, keys[2] + 32 * d, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(6, keys[3] + 32 * d, 64);
    _tile_dpbf16ps(3, 4, 6);
  }
  if (d < head_size) {
    _tile_loadd(5, state.q[d / TILE_K], 64);
    _tile_loadd(7, keys[0] + 32 * d, 64);
    _tile_dpbf16ps(0, 5, 7);
    _tile_loadd(7, keys[1] + 32 * d, 64);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(7, keys[2] + 32 * d, 64);
    _tile_dpbf16ps(2, 5, 7);
    _tile_loadd(7, keys[3] + 32 * d, 64);
    _tile_dpbf16ps(3, 5, 7);
  }
  store_sums(scores);
  finish_stores();
}

// exp of numbers up to 0: 2^n (1 + f q(f)) with f within a half of 0, where q is the polynomial of least relative error,
// 1e-7. The product with log2 e, rounded, adds up to 5e-6 where the result is hardly above 0. Below the least normal
// number it is 0. NaN stays NaN.
constexpr float Q1 = 6.9314700365e-01f, Q2 = 2.4022242427e-01f, Q3 = 5.5507335812e-02f, Q4 = 9.6715129912e-03f,
                Q5 = 1.3264723821e-03f;

inline __m512 exp_fast(__m512 x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(t, n);
  __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(Q5), f, _mm512_set1_ps(Q4));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(Q3));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(Q2));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(Q1));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, _mm512_set1_ps(-126), _CMP_NLT_UQ), y, n);
}

// Of parts of 4 numbers of both, the even and the odd ones: the greater of each two.
inline __m512 greater_halves(__m512 a, __m512 b) {
  return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

// Of 16 vectors the greatest number of each, in order.
inline __m512 greatest_of_each(__m512 (&v)[MOST_ROWS]) {
  __m512 four[4];
  for (int i = 0; i < 4; i++) {
    const __m512* r = v + 4 * i;
    const __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1]));
    const __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));
    const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    four[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
  }
  const __m512 low = greater_halves(four[0], four[1]), high = greater_halves(four[2], four[3]);
  return greater_halves(low, high);
}

// Scores are scaled, and those of keys that a row does not see left out. `best`: the greatest of each row, by lane.
inline void scale_scores(const Attention& job, const Rows& rows, const Keys& some, float* scores,
                         __m512 (&best)[MOST_ROWS]) {
  const __m512 scale = _mm512_set1_ps(job.softcap > 0 ? 1 : job.scale), nothing = _mm512_set1_ps(-INFINITY);
  for (int m = 0; m < MOST_ROWS; m++) best[m] = nothing;
  for (int m = 0; m < rows.num; m++) {
    uint64_t seen = ~uint64_t{0};
    if (!some.all) {
      const int begin = begin_of(rows, m, some), end = end_of(rows, m, some);
      seen = begin < end ? seen >> (KEYS - end) & seen << begin : 0;
    }
    for (int s = 0; s < KEYS / LANES; s++, seen >>= LANES) {
      float* at = scores + s * TILE_SUMS + m * LANES;
      for (int i = 0; job.softcap > 0 && i < LANES; i++) at[i] = job.softcap * tanhf(at[i] * job.scale / job.softcap);
      const __m512 x = _mm512_mask_mul_ps(nothing, static_cast<__mmask16>(seen), _mm512_loadu_ps(at), scale);
      _mm512_storeu_ps(at, x);
      best[m] = _mm512_max_ps(best[m], x);
    }
  }
}

// Scores of all rows become weights.
inline void weigh_rows(const Attention& job, State& state, const Rows& rows, const Keys& some, float* scores) {
  __m512 best[MOST_ROWS];
  scale_scores(job, rows, some, scores, best);
  const __m512 before = _mm512_loadu_ps(state.top), top = _mm512_max_ps(before, greatest_of_each(best));
  const __mmask16 none = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
  const __m512 from = _mm512_mask_mov_ps(top, none, _mm512_setzero_ps());
  alignas(64) float less[MOST_ROWS];
  _mm512_store_ps(less, from);
  _mm512_storeu_ps(state.top, top);
  _mm512_storeu_ps(state.fade, exp_fast(_mm512_sub_ps(before, from)));
  for (int m = 0; m < rows.num; m++) {
    const __m512 by = _mm512_set1_ps(less[m]);
    __m512 w[KEYS / LANES];
    for (int s = 0; s < KEYS / LANES; s++)
      w[s] = exp_fast(_mm512_sub_ps(_mm512_loadu_ps(scores + s * TILE_SUMS + m * LANES), by));
    _mm512_storeu_si512(state.weights[m], (__m512i)_mm512_cvtne2ps_pbh(w[1], w[0]));
    _mm512_storeu_si512(state.weights[m] + 2 * LANES, (__m512i)_mm512_cvtne2ps_pbh(w[3], w[2]));
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(w[0], w[1]), _mm512_add_ps(w[2], w[3]));
    state.total[m] = _mm512_fmadd_ps(state.total[m], _mm512_set1_ps(state.fade[m]), sum);
  }
}

// Values of keys [begin, end) of KEYS, and zeros around them.
inline void copy_values(const uint8_t* const* values, int64_t head_size, int begin, int end, Copy& copy) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  __mmask32 odd = 0;
  copy.begin = begin / LANES, copy.end = (end + LANES - 1) / LANES;
  for (int pair = copy.begin * LANES / 2; pair < copy.end * LANES / 2; pair++) {
    const int64_t at = pair % (LANES / 2) * head_size * 4;
    const bool first = begin <= 2 * pair && 2 * pair < end, second = begin <= 2 * pair + 1 && 2 * pair + 1 < end;
    const __m512i seen = _mm512_set1_epi32(static_cast<int>((first ? 0xFFFFu : 0) | (second ? 0xFFFF0000u : 0)));
    for (int64_t byte = at; byte < at + head_size * 4; byte += 64) {
      const __m512i both = _mm512_and_si512(_mm512_loadu_si512(values[pair * 2 / LANES] + byte), seen);
      _mm512_storeu_si512(copy.values[pair * 2 / LANES] + byte, both);
      odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(both, exponent), exponent);
    }
  }
  copy.finite = odd == 0;
}

// Adds values of strips [begin, end) of KEYS keys to the results of rows [row, row + num).
inline void add_values(State& state, const uint8_t* const* values, int begin, int end, int64_t head_size, int row,
                       int num) {
  alignas(64) float added[4 * TILE_SUMS];
  for (int64_t d = 0; d < head_size; d += 4 * LANES) {
    const int64_t strips = head_size - d < 4 * LANES ? (head_size - d) / LANES : 4;
    clear_sums();
    for (int s = begin; s < end; s++) {
      const uint8_t* some = values[s] + 4 * d;
      _tile_loadd(5, &state.weights[0][s * LANES], sizeof state.weights[0]);
      _tile_loadd(7, some, 4 * head_size);
      _tile_dpbf16ps(0, 5, 7);
      if (strips < 2) continue;
      _tile_loadd(7, some + 64, 4 * head_size);
      _tile_dpbf16ps(1, 5, 7);
      if (strips < 3) continue;
      _tile_loadd(7, some + 128, 4 * head_size);
      _tile_dpbf16ps(2, 5, 7);
      if (strips < 4) continue;
      _tile_loadd(7, some + 192, 4 * head_size);
      _tile_dpbf16ps(3, 5, 7);
    }
    store_sums(added);
    finish_stores();
    for (int64_t s = 0; s < strips; s++) {
      float* out = state.out + (d / LANES + s) * TILE_SUMS;
      for (int m = row; m < row + num; m++) {
        const __m512 fade = _mm512_set1_ps(state.fade[m]), sum = _mm512_load_ps(added + s * TILE_SUMS + m * LANES);
        _mm512_store_ps(out + m * LANES, _mm512_fmadd_ps(_mm512_load_ps(out + m * LANES), fade, sum));
      }
    }
  }
}

inline void add_copy(State& state, const Copy& copy, int64_t head_size, int row, int num) {
  const uint8_t* values[KEYS / LANES];
  for (int s = 0; s < KEYS / LANES; s++) values[s] = copy.values[s];
  finish_stores();
  add_values(state, values, copy.begin, copy.end, head_size, row, num);
}

// Joins KEYS keys with what a block of rows has so far. `shared`: a copy of the values that any row of the unit sees.
inline void join_block(const Attention& job, State& state, const Rows& rows, const Keys& some, const Copy& shared) {
  alignas(64) float scores[4 * TILE_SUMS];
  score_tiles(state, some.keys, job.head_size, scores);
  weigh_rows(job, state, rows, some, scores);
  finish_stores();
  if (some.all) return add_values(state, some.values, 0, KEYS / LANES, job.head_size, 0, rows.num);
  if (shared.finite) return add_copy(state, shared, job.head_size, 0, rows.num);
  Copy own;
  for (int m = 0; m < rows.num; m++) {
    const int begin = begin_of(rows, m, some), end = end_of(rows, m, some);
    if (begin >= end) continue;
    copy_values(some.values, job.head_size, begin, end, own);
    add_copy(state, own, job.head_size, m, 1);
  }
}

inline void begin_block(const Attention& job, const Rows& rows, State& state) {
  memset(state.out, 0, static_cast<size_t>(job.head_size / LANES * TILE_SUMS) * sizeof(float));
  memset(state.q, 0, static_cast<size_t>((job.head_size + TILE_K - 1) / TILE_K) * sizeof state.q[0]);
  memset(state.weights, 0, sizeof state.weights);
  for (int m = 0; m < MOST_ROWS; m++) state.top[m] = -INFINITY, state.total[m] = _mm512_setzero_ps();
  for (int m = 0; m < rows.num; m++)
    for (int64_t d = 0; d < job.head_size; d += LANES)
      memcpy(&state.q[d / TILE_K][m][d % TILE_K], query_of(job, rows, m) + d, 2 * LANES);
}

inline void attend_blocks(const Attention& job, const Rows* blocks, int num, int64_t seq, int64_t kv_head) {
  State states[BLOCKS];
  Copy copy;
  Keys some;
  for (int block = 0; block < num; block++) begin_block(job, blocks[block], states[block]);
  const Range all = range_of(blocks, num);
  shape_attention(num == 1 ? blocks[0].num : MOST_ROWS);
  for (int64_t key = all.first / KEYS * KEYS; key < all.last; key += KEYS) {
    look_up(job, all, seq, kv_head, key, some);
    if (!some.all)
      copy_values(some.values, job.head_size, clamped(all.first - key, KEYS), clamped(all.last - key, KEYS), copy);
    for (int block = 0; block < num; block++) join_block(job, states[block], blocks[block], some, copy);
  }
  _tile_release();
  for (int block = 0; block < num; block++)
    for (int m = 0; m < blocks[block].num; m++) {
      const float total = Simd::total(states[block].total[m]);
      finish_row(job, blocks[block], m, states[block].top[m], total, states[block].out + m * LANES, TILE_SUMS);
    }
}
