// One variant: compiled once for each set of instructions, with SIMD_HEADER and VARIANT defined.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef HAVE_X86
#include <immintrin.h>
#endif

#include "kernels.h"

namespace {
#include "numbers.h"
#include SIMD_HEADER
#include "linear.h"
#ifdef __AMX_BF16__
#include "tiles.h"
constexpr Linear linear_dense = linear_tiles;
#else
constexpr Linear linear_dense = linear<Bf16>;
#endif
#include "exp.h"
#include "attention.h"
#include "rows.h"
#include "select.h"
}  // namespace

extern const Kernels VARIANT;
const Kernels VARIANT = {linear_dense, linear<Coded<Q41>>, linear<Coded<Q80>>, attention, kv_write, norm, rope, act_mul,
                         gather,       take_ids,           put_ids,            attention_plan, greedy,     spec_verify};
