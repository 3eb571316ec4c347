// The kernels that every variant supplies, and the threads that they run on.
//
// A variant is one set of instructions: variant.cpp, compiled with its flags and its simd_*.h. Code of a variant stands in
// an unnamed namespace and calls no inline function of the C++ library: the linker keeps one copy of such functions, and
// it might be one with instructions that this processor lacks.
#pragma once
#include <cstdint>

// y [rows, n] = x [rows, k] times the packed weight [n, k], transposed, plus bias [n] where there is one. All but the
// weight is bfloat16; rows of x lie row_stride elements apart, those of y n. Returns 0, or 1 when memory is short.
using Linear = int (*)(const void* weight, int64_t n, int64_t k, const uint16_t* x, int64_t rows, int64_t row_stride,
                       const uint16_t* bias, uint16_t* y);

// Attention of one layer. q, keys, values and out are bfloat16; strides count elements. attention.h has the pool's order.
struct Attention {
  const uint16_t* q;  // [tokens, heads, head_size]
  int64_t q_token_stride, q_head_stride;
  int64_t num_tokens, num_heads, num_kv_heads, head_size;  // head_size: a multiple of 16, at most 256
  const uint16_t *keys, *values;
  int64_t num_pages, page_tokens;                         // page_tokens: a multiple of 16
  const int32_t *query_starts, *kv_lens, *tile_starts;    // [seqs + 1], [seqs], [seqs + 1]: tiles of 16 queries before
  const int32_t* table;                                   // [seqs, table_width] pages
  int64_t num_seqs, table_width;
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  uint16_t* out;         // [tokens, heads, head_size]
  float* lse;            // [tokens, heads], or null
  int64_t head_parts;    // filled in by the kernel
};

// New keys and values, [tokens, heads, head_size], into slots of the pool, [tokens]; slot -1 is skipped.
struct KVWrite {
  const uint16_t *k, *v;
  int64_t k_strides[2], v_strides[2];  // of tokens and heads
  int64_t num_tokens, num_heads, head_size;
  uint16_t *keys, *values;
  int64_t num_pages, page_tokens;
  const int32_t* slots;
};

// y = x / sqrt(mean(x^2) + eps) * w by rows. With a residual, x + residual takes its place and is normed.
// Rows of x lie x_stride apart, and groups of `inner` rows group_stride.
struct Norm {
  const uint16_t* x;
  int64_t x_stride, inner, group_stride;
  uint16_t* residual;  // [rows, columns], or null
  const uint16_t* w;
  uint16_t* y;  // [rows, columns]
  int64_t rows, columns;
  float eps;
};

// Turns the pairs (i, i + half) of each head, in place, by cos_sin [rows, 2 half]: cosines, then sines.
struct Rope {
  uint16_t* x;
  int64_t token_stride, head_stride;
  const uint16_t* cos_sin;
  int64_t rows, heads, half;
};

// y = act(x[:, :columns]) * x[:, columns:]; act is silu, or the tanh form of gelu.
struct ActMul {
  const uint16_t* x;
  int64_t x_stride;
  uint16_t* y;  // [rows, columns]
  int64_t rows, columns;
  int64_t gelu_tanh;  // 0: silu
};

// A product as a job: the arguments of Linear.
struct Product {
  const void* weight;
  int64_t n, k;
  const uint16_t* x;
  int64_t rows, row_stride;
  const uint16_t* bias;
  uint16_t* y;
};

// y[i] = row rows[i] - first of x, and zeros where x has no such row. Rows of x lie x_stride bytes apart.
struct Gather {
  const uint8_t* x;
  int64_t num_rows, row_bytes, x_stride;
  const int32_t* rows;
  int64_t first, num;
  uint8_t* y;  // [num, row_bytes]
};

// out[i] = last_ids[source_rows[i]], and ids[i] where the source row is 0 or none of num_rows. ids lie ids_stride apart.
struct TakeIds {
  const int32_t *ids, *source_rows, *last_ids;
  int64_t ids_stride, num, num_rows;
  int32_t* out;
};

// last_ids[rows[i]] = ids[i], in order; rows that are none of num_rows are skipped.
struct PutIds {
  int32_t* last_ids;
  const int32_t *rows, *ids;
  int64_t num, num_rows;
};

// A copy of what attention reads of a step, and how many tiles of 16 queries come before each sequence.
struct AttentionPlan {
  const int32_t *query_starts, *kv_lens, *table;  // [seqs + 1], [seqs], [seqs, width] with rows table_stride apart
  int64_t num_seqs, width, table_stride;
  int32_t *query_starts_copy, *kv_lens_copy, *table_copy, *tile_starts;
};

// ids[i]: the first greatest of a row of logits; -1 where it is not finite, or one is NaN.
struct Greedy {
  const uint16_t* logits;
  int64_t rows, columns, stride;
  int32_t* ids;
};

// num[s]: how many of a row of drafts agree with the ids sampled, from the left; -1 pads. row[s]: of rows [seqs,
// drafts + 1] the one of the first that does not.
struct SpecVerify {
  const int32_t *draft_ids, *sampled_ids, *rows;  // [seqs, drafts], and [seqs, drafts + 1] twice
  int64_t num_seqs, num_drafts;
  int32_t *num, *row;  // [seqs]
};

struct Kernels {
  Linear linear_bf16;
  Linear linear_q4_1;
  Linear linear_q8_0;
  void (*attention)(const Attention&);
  void (*kv_write)(const KVWrite&);
  void (*norm)(const Norm&);
  void (*rope)(const Rope&);
  void (*act_mul)(const ActMul&);
  void (*gather)(const Gather&);
  void (*take_ids)(const TakeIds&);
  void (*put_ids)(const PutIds&);
  void (*attention_plan)(const AttentionPlan&);
  void (*greedy)(const Greedy&);
  void (*spec_verify)(const SpecVerify&);
};

// One call of a recorded step: of a product where `multiply` is given, else of a kernel.
struct Call {
  Linear multiply;
  void (*kernel)(const void* job);
  const void* job;
};

// One part of a job, of `num`.
using Part = void (*)(const void* job, int part, int num);

// Threads that torch would use for a product here.
int num_threads();

// Runs parts 0 to num - 1 of a job and waits for them.
void run_parts(Part part, const void* job, int num);
