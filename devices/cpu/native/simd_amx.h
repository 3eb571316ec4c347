// AVX-512 with instructions for bfloat16, beside which tiles.h multiplies.
#pragma once
#include "simd_avx512_bf16.h"
