// What picks and moves without arithmetic: rows by number, ids, the likeliest token. Included by variant.cpp, after rows.h.

inline void gather_row(const Gather& job, int64_t i) {
  const int64_t row = int64_t{job.rows[i]} - job.first;
  uint8_t* y = job.y + i * job.row_bytes;
  if (row < 0 || row >= job.num_rows)
    memset(y, 0, static_cast<size_t>(job.row_bytes));
  else
    memcpy(y, job.x + row * job.x_stride, static_cast<size_t>(job.row_bytes));
}

struct Gathering : Gather {
  int64_t rows;  // as for_rows counts them
};

inline void gather_one(const Gathering& job, int64_t i) { gather_row(job, i); }

inline void gather(const Gather& job) {
  const Gathering all = {job, job.num};
  for_rows<Gathering, gather_one>(all, job.row_bytes / 8);
}

inline void take_ids(const TakeIds& job) {
  for (int64_t i = 0; i < job.num; i++) {
    const int64_t row = job.source_rows[i];
    job.out[i] = row > 0 && row < job.num_rows ? job.last_ids[row] : job.ids[i * job.ids_stride];
  }
}

inline void put_ids(const PutIds& job) {
  for (int64_t i = 0; i < job.num; i++)
    if (job.rows[i] >= 0 && job.rows[i] < job.num_rows) job.last_ids[job.rows[i]] = job.ids[i];
}

inline void spec_verify(const SpecVerify& job) {
  for (int64_t s = 0; s < job.num_seqs; s++) {
    const int32_t* drafts = job.draft_ids + s * job.num_drafts;
    const int64_t first = s * (job.num_drafts + 1);
    int64_t num = 0;
    while (num < job.num_drafts && drafts[num] >= 0 && drafts[num] == job.sampled_ids[first + num]) num++;
    job.num[s] = static_cast<int32_t>(num);
    job.row[s] = job.rows[first + num];
  }
}

inline void attention_plan(const AttentionPlan& job) {
  int32_t tiles = 0;
  job.query_starts_copy[0] = job.query_starts[0];
  job.tile_starts[0] = 0;
  for (int64_t s = 0; s < job.num_seqs; s++) {
    tiles += (job.query_starts[s + 1] - job.query_starts[s] + TILE_TOKENS - 1) / TILE_TOKENS;
    job.tile_starts[s + 1] = tiles;
    job.query_starts_copy[s + 1] = job.query_starts[s + 1];
    job.kv_lens_copy[s] = job.kv_lens[s];
    memcpy(job.table_copy + s * job.width, job.table + s * job.table_stride, static_cast<size_t>(4 * job.width));
  }
}

// Bits of a bfloat16 as a number that grows with it: from NaN with a sign over -infinity, ... -0, +0, ... to NaN.
inline int16_t in_order(uint16_t bits) {
  const int16_t value = static_cast<int16_t>(bits);
  return static_cast<int16_t>(value ^ (value >> 15 & 0x7FFF));
}

inline void greedy_row(const Greedy& job, int64_t row) {
  constexpr int16_t INFINITE = 0x7F80, MINUS_INFINITE = ~INFINITE;
  const uint16_t* logits = job.logits + row * job.stride;
  int16_t top = MINUS_INFINITE, low = INFINITE;
  for (int64_t i = 0; i < job.columns; i++) {
    const int16_t one = in_order(logits[i]);
    top = one > top ? one : top;
    low = one < low ? one : low;
  }
  job.ids[row] = -1;
  if (low < MINUS_INFINITE || top >= INFINITE || top == MINUS_INFINITE) return;
  const int16_t least = top == 0 ? -1 : top;  // -0 equals 0
  int64_t at = 0;
  while (in_order(logits[at]) < least) at++;
  job.ids[row] = static_cast<int32_t>(at);
}

inline void greedy(const Greedy& job) { for_rows<Greedy, greedy_row>(job, job.columns); }
