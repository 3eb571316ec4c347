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
#include "exp.h"
#include "attention.h"
#include "rows.h"
}  // namespace

extern const Kernels VARIANT;
const Kernels VARIANT = {linear<Bf16>, linear<Coded<Q41>>, linear<Coded<Q80>>, attention, kv_write, norm, rope, act_mul};
