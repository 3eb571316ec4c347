// Scores of keys and sums of values by the tile registers of AMX. Included by attention.h, after State and Keys.
//
// A block of up to 16 rows meets strips of 16 keys: q with 32 of D at a time, and 16 where that is what is left; then
// probabilities of 16 keys, which is what lies together of values, with strips of D. Each row of a register is summed by
// itself, so that rows which see some of the keys only are computed beside the others, and thrown away: they are summed
// by add_some_values, since what they do not see may be NaN.

// Registers 0 to 3 are sums, 4 and 5 rows of q or probabilities, 6 and 7 keys or values; 5 and 7 have half of K.
inline void start_rows(int num) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
    uint8_t rows[16] = {};
  } shapes;
  for (int i = 0; i < 6; i++) shapes.rows[i] = static_cast<uint8_t>(num);
  shapes.rows[6] = TILE_UNITS, shapes.rows[7] = TILE_UNITS / 2;
  finish_stores();
  _tile_loadconfig(&shapes);
}

// state.scores of all rows and keys.
inline void score_tiles(State& state, const uint8_t* const* keys, int64_t head_size) {
  constexpr int64_t Q_BYTES = sizeof state.q[0], SCORE_BYTES = sizeof state.scores[0];
  clear_sums();
  int64_t d = 0;
  for (; d + TILE_K <= head_size; d += TILE_K) {
    _tile_loadd(4, &state.q[0][d / 2], Q_BYTES);
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
    _tile_loadd(5, &state.q[0][d / 2], Q_BYTES);
    _tile_loadd(7, keys[0] + 32 * d, 64);
    _tile_dpbf16ps(0, 5, 7);
    _tile_loadd(7, keys[1] + 32 * d, 64);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(7, keys[2] + 32 * d, 64);
    _tile_dpbf16ps(2, 5, 7);
    _tile_loadd(7, keys[3] + 32 * d, 64);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, &state.scores[0][0], SCORE_BYTES);
  _tile_stored(1, &state.scores[0][LANES], SCORE_BYTES);
  _tile_stored(2, &state.scores[0][2 * LANES], SCORE_BYTES);
  _tile_stored(3, &state.scores[0][3 * LANES], SCORE_BYTES);
}

// Adds values of all KEYS keys to up to four strips of the results of rows that see them all, from d on.
inline void add_values_tiles(State& state, const Keys& some, int64_t head_size, int64_t d, int num) {
  const int64_t strips = head_size - d < 4 * LANES ? (head_size - d) / LANES : 4;
  alignas(64) float added[MOST_ROWS][4 * LANES];
  clear_sums();
  for (int s = 0; s < KEYS / LANES; s++) {
    const uint8_t* values = some.values[s] + 4 * d;
    _tile_loadd(5, &state.weights[0][s * LANES / 2], sizeof state.weights[0]);
    _tile_loadd(7, values, 4 * head_size);
    _tile_dpbf16ps(0, 5, 7);
    if (strips < 2) continue;
    _tile_loadd(7, values + 64, 4 * head_size);
    _tile_dpbf16ps(1, 5, 7);
    if (strips < 3) continue;
    _tile_loadd(7, values + 128, 4 * head_size);
    _tile_dpbf16ps(2, 5, 7);
    if (strips < 4) continue;
    _tile_loadd(7, values + 192, 4 * head_size);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, &added[0][0], sizeof added[0]);
  _tile_stored(1, &added[0][LANES], sizeof added[0]);
  _tile_stored(2, &added[0][2 * LANES], sizeof added[0]);
  _tile_stored(3, &added[0][3 * LANES], sizeof added[0]);
  for (int m = 0; m < num; m++) {
    if (some.begin[m] != 0 || some.end[m] != KEYS) continue;
    for (int64_t s = 0; s < strips; s++) {
      float* out = &state.out[m][d + s * LANES];
      Simd::store(out, Simd::multiply_add(Simd::load(out), state.fade[m], Simd::load(&added[m][s * LANES])));
    }
  }
}

// Joins KEYS keys with what `num` rows have so far.
inline void join_rows(const Attention& job, State& state, const Keys& some, int num) {
  finish_stores();
  score_tiles(state, some.keys, job.head_size);
  bool any = false;
  for (int m = 0; m < num; m++) {
    if (some.begin[m] >= some.end[m]) continue;
    weigh(job, state, m, some.begin[m], some.end[m]);
    if (some.begin[m] == 0 && some.end[m] == KEYS)
      any = true;
    else
      add_some_values(state, some.values, job.head_size, m, some.begin[m], some.end[m]);
  }
  finish_stores();
  for (int64_t d = 0; any && d < job.head_size; d += 4 * LANES) add_values_tiles(state, some, job.head_size, d, num);
}

inline void stop_rows() { _tile_release(); }
