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

struct Kernels {
  Linear linear_bf16;
  Linear linear_q4_1;
};

// One part of a job, of `num` that run at once.
using Part = void (*)(const void* job, int part, int num);

// Threads that torch would use for a product here.
int num_threads();

// Runs parts 0 to num - 1 of a job and waits for them.
void run_parts(Part part, const void* job, int num);
