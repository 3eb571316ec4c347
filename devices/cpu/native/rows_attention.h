// Attention by vectors: one block of rows at a time. Included by attention.h, after Rows and Keys.

constexpr int BLOCKS = 1;

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

// Joins KEYS keys with what M rows have so far.
template <int M>
void join(const Attention& job, State& state, const Rows& rows, const Keys& some) {
  score<M>(state, some.keys, job.head_size);
  for (int m = 0; m < M; m++) {
    const int begin = begin_of(rows, m, some), end = end_of(rows, m, some);
    if (begin >= end) continue;
    weigh(job, state, m, begin, end);
    if (!some.all) add_some_values(state, some.values, job.head_size, m, begin, end);
  }
  if (!some.all) return;
  int64_t strip = 0;
  for (; strip + 4 <= job.head_size / LANES; strip += 4) add_values<M, 4>(state, some.values, job.head_size, strip);
  for (; strip < job.head_size / LANES; strip++) add_values<M, 1>(state, some.values, job.head_size, strip);
}

template <int M = MOST_ROWS>
void join_rows(const Attention& job, State& state, const Rows& rows, const Keys& some, int num) {
  if constexpr (M > 0) {
    if (num == M) return join<M>(job, state, rows, some);
    join_rows<M - 1>(job, state, rows, some, num);
  }
}

inline void attend_blocks(const Attention& job, const Rows* blocks, int, int64_t seq, int64_t kv_head) {
  const Rows& rows = blocks[0];
  State state;
  Keys some;
  for (int m = 0; m < rows.num; m++) {
    const uint16_t* q = query_of(job, rows, m);
    for (int64_t d = 0; d < job.head_size; d += 2) state.q[m][d / 2] = Simd::pair(q[d], q[d + 1]);
    for (int64_t d = 0; d < job.head_size; d += LANES) Simd::store(&state.out[m][d], Simd::zero());
    state.top[m] = -INFINITY, state.total[m] = Simd::zero();
  }
  const Range all = range_of(blocks, 1);
  for (int64_t key = all.first / KEYS * KEYS; key < all.last; key += KEYS) {
    look_up(job, all, seq, kv_head, key, some);
    join_rows(job, state, rows, some, rows.num);
  }
  for (int m = 0; m < rows.num; m++) {
    const float total = Simd::total(state.total[m]);
    finish_row(job, rows, m, state.top[m], total, state.out[m], LANES);
  }
}
