// Attention over the paged pool, and writing to it. Included by variant.cpp, after Simd and linear.h.
//
// The pool keeps keys as linear.h keeps a weight, and values likewise with tokens in the place of K: of one head,
//   keys   [page][page / 16][D / 2][16 tokens][2]
//   values [page][page / 2][D][2 tokens]
// so scores are products of q with strips of 16 keys, and results are products of probabilities with strips of D.
//
// How it works. A unit of work is one key head, for TILE_TOKENS tokens of a sequence. Its rows, query heads of these
// tokens, go in blocks of MOST_ROWS, and BLOCKS of these walk together over KEYS keys at a time, from a multiple of KEYS
// on, and join them by the usual rescaling (Source: Dao et al. 2022, arXiv:2205.14135). Where a row sees none of the
// keys, nothing of it changes, and where it sees some, others are left out: they may be NaN. So what a row's result is
// does not depend on other rows. Probabilities may be rounded to bfloat16 before they weigh.
//
// Legend: T tokens, S sequences, H query heads, Hkv key heads, G = H / Hkv, D head size, B pages in a block table, M rows.

constexpr int KEYS = 64, MAX_HEAD = 256, TILE_TOKENS = 16;
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

inline const uint16_t* query_of(const Attention& job, const Rows& rows, int m) {
  return job.q + rows.token[m] * job.q_token_stride + rows.head[m] * job.q_head_stride;
}

// Keys that some of the rows see: [first, last). All of them see [all_first, all_last), where that is not empty.
struct Range {
  int64_t first, last, all_first, all_last;
};

inline Range range_of(const Rows* blocks, int num) {
  Range all = {blocks[0].first[0], 0, 0, blocks[0].last[0]};
  for (int block = 0; block < num; block++)
    for (int m = 0; m < blocks[block].num; m++) {
      const int64_t first = blocks[block].first[m], last = blocks[block].last[m];
      all.first = first < all.first ? first : all.first, all.last = last > all.last ? last : all.last;
      all.all_first = first > all.all_first ? first : all.all_first;
      all.all_last = last < all.all_last ? last : all.all_last;
    }
  return all;
}

inline int clamped(int64_t value, int most) { return value < 0 ? 0 : value > most ? most : static_cast<int>(value); }

// KEYS keys, from `first` on: whether all rows see all of them, and where strips of keys and values lie.
struct Keys {
  int64_t first;
  bool all;
  const uint8_t *keys[KEYS / LANES], *values[KEYS / LANES];
};

// Of KEYS keys a row sees [begin_of, end_of).
inline int begin_of(const Rows& rows, int m, const Keys& some) { return clamped(rows.first[m] - some.first, KEYS); }
inline int end_of(const Rows& rows, int m, const Keys& some) { return clamped(rows.last[m] - some.first, KEYS); }

inline void look_up(const Attention& job, const Range& all, int64_t seq, int64_t kv_head, int64_t key, Keys& some) {
  some.first = key;
  some.all = all.all_first <= key && key + KEYS <= all.all_last;
  const int64_t strips = job.page_tokens / LANES, bytes = LANES * job.head_size * 2;
  const int32_t* page = job.table + seq * job.table_width + key / job.page_tokens;
  int64_t in_page = key % job.page_tokens / LANES, at = 0;
  for (int s = 0; s < KEYS / LANES; s++) {
    if (s == 0 || key + s * LANES < all.last)  // nobody sees the rest
      at = ((kv_head * job.num_pages + *page) * strips + in_page) * bytes;
    some.keys[s] = reinterpret_cast<const uint8_t*>(job.keys) + at;
    some.values[s] = reinterpret_cast<const uint8_t*>(job.values) + at;
    if (++in_page == strips) in_page = 0, page++;
  }
}

// Writes a row's result: sums by the total of weights. Strips of sums lie `stride` apart; `top` is the greatest score.
inline void finish_row(const Attention& job, const Rows& rows, int m, float top, float total, const float* sums,
                       int64_t stride) {
  const int64_t row = rows.token[m] * job.num_heads + rows.head[m];
  const Simd::Vector by = Simd::spread(total == 0 ? 1 : total);
  for (int64_t strip = 0; strip < job.head_size / LANES; strip++)
    Simd::store_bf16(job.out + row * job.head_size + strip * LANES, Simd::divide(Simd::load(sums + strip * stride), by),
                     LANES);
  if (job.lse) job.lse[row] = top + logf(total);
}

#ifdef __AMX_BF16__
#include "tiles_attention.h"
#else
#include "rows_attention.h"
#endif

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
  Rows blocks[BLOCKS];
  int block = 0;
  blocks[0].num = 0;
  for (int64_t token = begin; token < end; token++)
    for (int64_t h = 0; h < heads; h++) {
      if (blocks[block].num == MOST_ROWS) {
        if (++block == BLOCKS) attend_blocks(job, blocks, BLOCKS, seq, kv_head), block = 0;
        blocks[block].num = 0;
      }
      Rows& rows = blocks[block];
      const int64_t last = job.kv_lens[seq] - stop + token + 1, m = rows.num++;
      rows.token[m] = token, rows.head[m] = kv_head * group + part * heads + h, rows.last[m] = last;
      rows.first[m] = job.window > 0 && last > job.window ? last - job.window : 0;
    }
  attend_blocks(job, blocks, block + 1, seq, kv_head);
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
