// Attention over the paged pool, and writing to it. Included by variant.cpp, after Simd and linear.h.
//
// The pool keeps keys as linear.h keeps a weight, and values likewise with tokens in the place of K: of one head,
//   keys   [page][page / 16][D / 2][16 tokens][2]
//   values [page][page / 2][D][2 tokens]
// so scores are products of q with strips of 16 keys, and results are products of probabilities with strips of D.
//
// How it works. A unit of work is one key head, for TILE_TOKENS tokens of a sequence. Its rows, query heads of these
// tokens, go in blocks of MOST_ROWS. A block walks over KEYS keys at a time, from a multiple of KEYS on, and joins them
// by the usual rescaling (Source: Dao et al. 2022, arXiv:2205.14135). Where a row sees none of the keys, nothing of it is
// touched, and where it sees some, others are left out by lanes and by halves of pairs, never multiplied: they may be NaN.
// So what a row's result is does not depend on other rows. Probabilities may be rounded to bfloat16 before they weigh.
//
// Legend: T tokens, S sequences, H query heads, Hkv key heads, G = H / Hkv, D head size, B pages in a block table, M rows.

constexpr int KEYS = 64, MAX_HEAD = 256, TILE_TOKENS = 8;
#ifdef __AMX_BF16__
constexpr int MOST_ROWS = 16;
#else
constexpr int MOST_ROWS = Simd::ROWS;
#endif

struct Rows {
  int num;
  int64_t token[MOST_ROWS], head[MOST_ROWS];
  int64_t first[MOST_ROWS], last[MOST_ROWS];  // of the keys that each sees: [first, last)
};

// What a block of rows has so far.
struct State {
  float top[MOST_ROWS];           // the greatest score
  Simd::Vector total[MOST_ROWS];  // of probabilities, by lane
  Simd::Vector fade[MOST_ROWS];   // by how much what was there before counts less
  float out[MOST_ROWS][MAX_HEAD];
  Simd::Pair q[MOST_ROWS][MAX_HEAD / 2];
  Simd::Pair weights[MOST_ROWS][KEYS / 2];
  float scores[MOST_ROWS][KEYS];
};

inline const uint8_t* strip_of(const Attention& job, const void* plane, int64_t seq, int64_t kv_head, int64_t key) {
  const int64_t page = job.table[seq * job.table_width + key / job.page_tokens];
  const int64_t strips = job.page_tokens / LANES, bytes = LANES * job.head_size * 2;
  const int64_t strip = (kv_head * job.num_pages + page) * strips + key % job.page_tokens / LANES;
  return static_cast<const uint8_t*>(plane) + strip * bytes;
}

template <int M>
void score(State& state, const uint8_t* const* keys, int64_t head_size) {
  constexpr int S = KEYS / LANES;
  Simd::Vector sum[M][S];
  for (int m = 0; m < M; m++)
    for (int s = 0; s < S; s++) sum[m][s] = Simd::zero();
  for (int64_t pair = 0; pair < head_size / 2; pair++) {
    Simd::Broadcast q[M];
    for (int m = 0; m < M; m++) q[m] = Simd::broadcast(&state.q[m][pair]);
    for (int s = 0; s < S; s++) {
      const Simd::Weights strip = Simd::weights(reinterpret_cast<const uint16_t*>(keys[s] + 64 * pair));
      for (int m = 0; m < M; m++) sum[m][s] = Simd::dot(sum[m][s], strip, q[m]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int s = 0; s < S; s++) Simd::store(state.scores[m] + s * LANES, sum[m][s]);
}

inline int clamped(int64_t value, int most) { return value < 0 ? 0 : value > most ? most : static_cast<int>(value); }

// Scores of row m become weights; of KEYS keys it sees [begin, end), at least one.
inline void weigh(const Attention& job, State& state, int m, int begin, int end) {
  Simd::Vector x[KEYS / LANES], highest = Simd::spread(-INFINITY);
  for (int s = 0; s < KEYS / LANES; s++) {
    const int at = s * LANES;
    for (int i = at; job.softcap > 0 && i < at + LANES; i++)
      state.scores[m][i] = job.softcap * tanhf(state.scores[m][i] * job.scale / job.softcap);
    x[s] = Simd::load(state.scores[m] + at);
    if (job.softcap <= 0) x[s] = Simd::multiply(x[s], Simd::spread(job.scale));
    x[s] = Simd::only(x[s], clamped(begin - at, LANES), clamped(end - at, LANES), -INFINITY);
    highest = Simd::maximum(highest, x[s]);
  }
  const float here = Simd::largest(highest), top = state.top[m] > here ? state.top[m] : here;
  const Simd::Vector less = Simd::spread(top == -INFINITY ? 0 : -top);
  state.fade[m] = exp_down(Simd::add(Simd::spread(state.top[m]), less));
  state.total[m] = Simd::multiply(state.total[m], state.fade[m]);
  for (int s = 0; s < KEYS / LANES; s++) {
    const Simd::Vector weight = exp_down(Simd::add(x[s], less));
    state.total[m] = Simd::add(state.total[m], weight);
    Simd::store_pairs(&state.weights[m][s * LANES / 2], weight);
  }
  state.top[m] = top;
}

// Adds values of all KEYS keys to S strips of M rows' results, from strip `strip` on.
template <int M, int S>
void add_values(State& state, const uint8_t* const* values, int64_t head_size, int64_t strip) {
  Simd::Vector sum[M][S];
  for (int m = 0; m < M; m++)
    for (int s = 0; s < S; s++)
      sum[m][s] = Simd::multiply(Simd::load(&state.out[m][(strip + s) * LANES]), state.fade[m]);
  for (int pair = 0; pair < KEYS / 2; pair++) {
    const uint8_t* tokens = values[pair * 2 / LANES] + (pair % (LANES / 2) * head_size + strip * LANES) * 4;
    Simd::Broadcast weight[M];
    for (int m = 0; m < M; m++) weight[m] = Simd::broadcast(&state.weights[m][pair]);
    for (int s = 0; s < S; s++) {
      const Simd::Weights both = Simd::weights(reinterpret_cast<const uint16_t*>(tokens + 64 * s));
      for (int m = 0; m < M; m++) sum[m][s] = Simd::dot(sum[m][s], both, weight[m]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int s = 0; s < S; s++) Simd::store(&state.out[m][(strip + s) * LANES], sum[m][s]);
}

// Adds values of keys [begin, end) of KEYS to row m's results.
inline void add_some_values(State& state, const uint8_t* const* values, int64_t head_size, int m, int begin, int end) {
  for (int64_t d = 0; d < head_size; d += LANES) {
    Simd::Vector sum = Simd::multiply(Simd::load(&state.out[m][d]), state.fade[m]);
    for (int pair = begin / 2; pair < (end + 1) / 2; pair++) {
      const uint8_t* tokens = values[pair * 2 / LANES] + (pair % (LANES / 2) * head_size + d) * 4;
      Simd::Weights both = Simd::weights(reinterpret_cast<const uint16_t*>(tokens));
      if (2 * pair < begin) both = Simd::second_only(both);
      if (2 * pair + 1 >= end) both = Simd::first_only(both);
      sum = Simd::dot(sum, both, Simd::broadcast(&state.weights[m][pair]));
    }
    Simd::store(&state.out[m][d], sum);
  }
}

// Of KEYS keys, from `key` on: which ones each of some rows sees, [begin, end), whether all of them see all, and where
// strips of keys and values lie.
struct Keys {
  int begin[MOST_ROWS], end[MOST_ROWS];
  bool all;
  const uint8_t *keys[KEYS / LANES], *values[KEYS / LANES];
};

inline void look_up(const Attention& job, const Rows& rows, int64_t seq, int64_t kv_head, int64_t key, Keys& some) {
  int64_t last = 0;
  some.all = true;
  for (int m = 0; m < rows.num; m++) {
    some.begin[m] = clamped(rows.first[m] - key, KEYS), some.end[m] = clamped(rows.last[m] - key, KEYS);
    last = rows.last[m] > last ? rows.last[m] : last;
    some.all = some.all && some.begin[m] == 0 && some.end[m] == KEYS;
  }
  for (int s = 0; s < KEYS / LANES; s++) {
    const int64_t at = key + s * LANES < last ? key + s * LANES : key;  // nobody sees the rest
    some.keys[s] = strip_of(job, job.keys, seq, kv_head, at);
    some.values[s] = strip_of(job, job.values, seq, kv_head, at);
  }
}

#ifdef __AMX_BF16__
#include "tiles_attention.h"
#else
inline void start_rows(int) {}
inline void stop_rows() {}

// Joins KEYS keys with what M rows have so far.
template <int M>
void join(const Attention& job, State& state, const Keys& some) {
  score<M>(state, some.keys, job.head_size);
  for (int m = 0; m < M; m++)
    if (some.begin[m] < some.end[m]) weigh(job, state, m, some.begin[m], some.end[m]);
  if (!some.all) {
    for (int m = 0; m < M; m++)
      if (some.begin[m] < some.end[m])
        add_some_values(state, some.values, job.head_size, m, some.begin[m], some.end[m]);
    return;
  }
  int64_t strip = 0;
  for (; strip + 4 <= job.head_size / LANES; strip += 4) add_values<M, 4>(state, some.values, job.head_size, strip);
  for (; strip < job.head_size / LANES; strip++) add_values<M, 1>(state, some.values, job.head_size, strip);
}

template <int M = MOST_ROWS>
void join_rows(const Attention& job, State& state, const Keys& some, int num) {
  if constexpr (M > 0) {
    if (num == M) return join<M>(job, state, some);
    join_rows<M - 1>(job, state, some, num);
  }
}
#endif

inline void attend_rows(const Attention& job, const Rows& rows, int64_t seq, int64_t kv_head) {
  State state;
  Keys some;
  int64_t first = rows.first[0], last = 0;
  for (int m = 0; m < rows.num; m++) {
    const uint16_t* q = job.q + rows.token[m] * job.q_token_stride + rows.head[m] * job.q_head_stride;
    for (int64_t d = 0; d < job.head_size; d += 2) state.q[m][d / 2] = Simd::pair(q[d], q[d + 1]);
    for (int64_t d = 0; d < job.head_size; d += LANES) Simd::store(&state.out[m][d], Simd::zero());
    state.top[m] = -INFINITY, state.total[m] = Simd::zero();
    first = rows.first[m] < first ? rows.first[m] : first;
    last = rows.last[m] > last ? rows.last[m] : last;
  }
  start_rows(rows.num);
  for (int64_t key = first / KEYS * KEYS; key < last; key += KEYS) {
    look_up(job, rows, seq, kv_head, key, some);
    join_rows(job, state, some, rows.num);
  }
  stop_rows();
  for (int m = 0; m < rows.num; m++) {
    const float total = Simd::total(state.total[m]);
    const int64_t row = rows.token[m] * job.num_heads + rows.head[m];
    const Simd::Vector by = Simd::spread(total == 0 ? 1 : total);
    for (int64_t d = 0; d < job.head_size; d += LANES)
      Simd::store_bf16(job.out + row * job.head_size + d, Simd::divide(Simd::load(&state.out[m][d]), by), LANES);
    if (job.lse) job.lse[row] = state.top[m] + logf(total);
  }
}

// The sequence that a tile of tokens is of: tile_starts[seq] <= tile < tile_starts[seq + 1].
inline int64_t sequence_of(const Attention& job, int64_t tile) {
  int64_t low = 0, high = job.num_seqs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (job.tile_starts[middle] <= tile ? low : high) = middle;
  }
  return low;
}

// Attention of one unit: [tile][key head][part of the query heads of a key head].
inline void attend_unit(const void* data, int unit, int) {
  const Attention& job = *static_cast<const Attention*>(data);
  const int64_t group = job.num_heads / job.num_kv_heads, heads = group / job.head_parts;
  const int64_t part = unit % job.head_parts, kv_head = unit / job.head_parts % job.num_kv_heads;
  const int64_t tile = unit / job.head_parts / job.num_kv_heads, seq = sequence_of(job, tile);
  const int64_t begin = job.query_starts[seq] + (tile - job.tile_starts[seq]) * TILE_TOKENS;
  const int64_t stop = job.query_starts[seq + 1], end = begin + TILE_TOKENS < stop ? begin + TILE_TOKENS : stop;
  Rows rows = {};
  for (int64_t token = begin; token < end; token++)
    for (int64_t h = 0; h < heads; h++) {
      const int64_t last = job.kv_lens[seq] - stop + token + 1, m = rows.num++;
      rows.token[m] = token, rows.head[m] = kv_head * group + part * heads + h, rows.last[m] = last;
      rows.first[m] = job.window > 0 && last > job.window ? last - job.window : 0;
      if (rows.num == MOST_ROWS || (token == end - 1 && h == heads - 1)) {
        attend_rows(job, rows, seq, kv_head);
        rows.num = 0;
      }
    }
}

inline void attention(const Attention& asked) {
  Attention job = asked;
  const int64_t real = job.query_starts[job.num_seqs], rest = (job.num_tokens - real) * job.num_heads;
  for (int64_t i = 0; i < rest * job.head_size; i++) job.out[real * job.num_heads * job.head_size + i] = 0;
  for (int64_t i = 0; job.lse && i < rest; i++) job.lse[real * job.num_heads + i] = -INFINITY;
  const int64_t units = int64_t{job.tile_starts[job.num_seqs]} * job.num_kv_heads;
  // Few units leave threads idle; then each query head is one, though keys are read more often.
  job.head_parts = units < 4 * num_threads() ? job.num_heads / job.num_kv_heads : 1;
  if (units) run_parts(attend_unit, &job, static_cast<int>(units * job.head_parts));
}

struct Writing {
  const KVWrite& job;
  int64_t step;
};

// k and v of tokens [part * step, (part + 1) * step) into their slots; slot -1 is skipped.
inline void write_part(const void* data, int part, int) {
  const Writing& writing = *static_cast<const Writing*>(data);
  const KVWrite& job = writing.job;
  const int64_t begin = part * writing.step, end = begin + writing.step;
  for (int64_t token = begin; token < end && token < job.num_tokens; token++) {
    const int64_t slot = job.slots[token];
    if (slot < 0) continue;
    const int64_t page = slot / job.page_tokens, at = slot % job.page_tokens;
    for (int64_t h = 0; h < job.num_heads; h++) {
      const uint16_t* k = job.k + token * job.k_strides[0] + h * job.k_strides[1];
      const uint16_t* v = job.v + token * job.v_strides[0] + h * job.v_strides[1];
      const int64_t first = (h * job.num_pages + page) * job.page_tokens * job.head_size;
      uint16_t* keys = job.keys + first + at / LANES * LANES * job.head_size + at % LANES * 2;
      uint16_t* values = job.values + first + at / 2 * 2 * job.head_size + at % 2;
      for (int64_t d = 0; d < job.head_size; d += 2) memcpy(keys + d * LANES, k + d, 4);
      for (int64_t d = 0; d < job.head_size; d++) values[2 * d] = v[d];
    }
  }
}

inline void kv_write(const KVWrite& job) {
  const int num = job.num_tokens < 64 ? 1 : num_threads();
  const Writing writing = {job, (job.num_tokens + num - 1) / num};
  run_parts(write_part, &writing, num);
}
