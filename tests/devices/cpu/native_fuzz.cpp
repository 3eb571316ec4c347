// Calls every kernel of every variant with random sizes, on arrays that end where their memory ends; prints how often.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels.h"

extern "C" {
const char* core_cpu_variant(int index);
const Kernels* core_cpu_kernels(int index);
void core_cpu_use_threads(void* run_parallel, void* get_max_threads);
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
int omp_get_max_threads();
}

// From 1 to most, small numbers most often.
static int64_t size(int64_t most) { return 1 + rand() % (1 + rand() % most); }

// Memory of its own for each array, so that a step past its end is seen.
static std::vector<uint16_t> numbers(int64_t num) {
  std::vector<uint16_t> some(num);
  for (uint16_t& one : some) one = static_cast<uint16_t>(rand());
  some.shrink_to_fit();
  return some;
}

static void multiply(Linear linear, int64_t unit_k, int64_t unit_bytes) {
  const int64_t rows = size(300) - 1, n = size(300);
  const int64_t k = unit_k == 2 ? size(rand() % 8 ? 300 : 5000) : 32 * size(rand() % 8 ? 10 : 150);
  const int64_t stride = k + rand() % 3;
  const auto weight = numbers((n + 63) / 64 * ((k + unit_k - 1) / unit_k) * 4 * unit_bytes / 2);
  const auto x = numbers(rows ? (rows - 1) * stride + k : 0), bias = numbers(n);
  auto y = numbers(rows * n);
  if (linear(weight.data(), n, k, x.data(), rows, stride, rand() % 2 ? bias.data() : nullptr, y.data())) exit(2);
}

int main(int, char** arguments) {
  core_cpu_use_threads(reinterpret_cast<void*>(GOMP_parallel), reinterpret_cast<void*>(omp_get_max_threads));
  const int times = atoi(arguments[1]);
  for (int variant = 0; core_cpu_variant(variant); variant++) {
    const Kernels* kernels = core_cpu_kernels(variant);
    for (int i = 0; i < times; i++) {
      multiply(kernels->linear_bf16, 2, 64);
      multiply(kernels->linear_q4_1, 32, 320);
    }
    printf("%s:%d\n", core_cpu_variant(variant), times);
  }
}
