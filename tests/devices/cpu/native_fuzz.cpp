// Calls every kernel of every variant with random sizes, on arrays that end where their memory ends; prints how often.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

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

// Memory that ends at a page which nobody may touch, since a compiler's checks do not see what tile instructions read.
// What is left of its own pages is marked for these checks.
template <class T>
struct Guarded {
  using value_type = T;
  static constexpr size_t PAGE = 4096;
  static size_t pages(size_t num) { return (num * sizeof(T) + PAGE - 1) / PAGE * PAGE; }

  T* allocate(size_t num) {
    char* at = static_cast<char*>(mmap(nullptr, pages(num) + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (at == MAP_FAILED || mprotect(at + PAGE, pages(num), PROT_READ | PROT_WRITE)) abort();
    ASAN_POISON_MEMORY_REGION(at + PAGE, pages(num) - num * sizeof(T));
    return reinterpret_cast<T*>(at + PAGE + pages(num) - num * sizeof(T));
  }
  void deallocate(T* p, size_t num) {
    char* at = reinterpret_cast<char*>(p) + num * sizeof(T) - pages(num) - PAGE;
    ASAN_UNPOISON_MEMORY_REGION(at + PAGE, pages(num));
    munmap(at, pages(num) + 2 * PAGE);
  }
};

using Numbers = std::vector<uint16_t, Guarded<uint16_t>>;

// Memory of its own for each array, so that a step past its end is seen.
static Numbers numbers(int64_t num) {
  Numbers some(num);
  for (uint16_t& one : some) one = static_cast<uint16_t>(rand());
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

// A step of a few sequences over a pool whose last page is in use, and the pool's last slot written to.
static void attend(const Kernels* kernels) {
  const int64_t seqs = size(4), page = 16 * size(3), head_size = 16 * size(16), kv_heads = size(3);
  const int64_t heads = kv_heads * size(7), width = size(6), pages = seqs * width + 1;
  std::vector<int32_t> starts(1, 0), lens, tiles(1, 0), table;
  for (int64_t seq = 0; seq < seqs; seq++) {
    const int64_t len = size(width * page), queries = rand() % (len + 1);
    starts.push_back(starts.back() + queries), lens.push_back(len), tiles.push_back(tiles.back() + (queries + 15) / 16);
    for (int64_t i = 0; i < width; i++) table.push_back(static_cast<int32_t>(pages - 1 - seq * width - i));
  }
  const int64_t tokens = starts.back() + rand() % 3, plane = kv_heads * pages * page * head_size;
  const auto q = numbers(tokens * heads * head_size), new_k = numbers(kv_heads * head_size), new_v = new_k;
  auto keys = numbers(plane), values = numbers(plane), out = numbers(tokens * heads * head_size);
  std::vector<float> lse(tokens * heads);
  const int32_t slot = static_cast<int32_t>(pages * page - 1);
  kernels->kv_write({new_k.data(), new_v.data(), {0, head_size}, {0, head_size}, 1, kv_heads, head_size, keys.data(),
                     values.data(), pages, page, &slot});
  kernels->attention({q.data(), heads * head_size, head_size, tokens, heads, kv_heads, head_size, keys.data(),
                      values.data(), pages, page, starts.data(), lens.data(), tiles.data(), table.data(), seqs, width,
                      0.125f, rand() % 4 ? 0 : 30.0f, rand() % 2 ? 0 : size(99), out.data(),
                      rand() % 2 ? lse.data() : nullptr, 0});
}

static void norm_turn_and_act(const Kernels* kernels) {
  const int64_t rows = size(200), columns = size(700), heads = size(5), half = size(70);
  const auto x = numbers(rows * 2 * columns), w = numbers(columns), cos_sin = numbers(rows * 2 * half);
  auto residual = numbers(rows * columns), y = numbers(rows * columns), turned = numbers(rows * heads * 2 * half);
  const int64_t inner = size(rows);  // groups with nothing between them
  kernels->norm({x.data(), 2 * columns, inner, 2 * columns * inner, rand() % 2 ? residual.data() : nullptr, w.data(), y.data(), rows, columns, 1e-5f});
  kernels->rope({turned.data(), heads * 2 * half, 2 * half, cos_sin.data(), rows, heads, half});
  kernels->act_mul({x.data(), 2 * columns, y.data(), rows, columns, rand() % 2});
}

static std::vector<int32_t, Guarded<int32_t>> below(int64_t num, int64_t least, int64_t most) {
  std::vector<int32_t, Guarded<int32_t>> some(num);
  for (int32_t& one : some) one = static_cast<int32_t>(least + rand() % (most - least));
  return some;
}

// Rows that there are and others, ids, plans, and the likeliest of logits of any bits.
static void select(const Kernels* kernels) {
  const int64_t have = size(50), columns = size(9000), num = size(60), width = size(9), first = rand() % 3;
  const auto x = numbers(have * columns), logits = numbers(num * columns);
  const auto rows = below(num, -2, have + 3), lens = below(num, 0, 9), table = below(num * width, 0, 99);
  auto y = numbers(num * columns);
  auto ids = below(num, 0, 9), taken = ids, last_ids = below(have, 0, 9);
  kernels->gather({reinterpret_cast<const uint8_t*>(x.data()), have, 2 * columns, 2 * columns, rows.data(), first, num,
                   reinterpret_cast<uint8_t*>(y.data())});
  kernels->take_ids({ids.data(), rows.data(), last_ids.data(), 1, num, have, taken.data()});
  kernels->put_ids({last_ids.data(), rows.data(), taken.data(), num, have});
  kernels->greedy({logits.data(), num, columns, columns, ids.data()});
  for (int32_t id : ids)
    if (id < -1 || id >= columns) exit(3);
  const int64_t drafts = rand() % 9;
  const auto drafted = below(num * drafts, -1, 3), sampled = below(num * (drafts + 1), -1, 3);
  auto kept = lens, right = lens;
  kernels->spec_verify({drafted.data(), sampled.data(), sampled.data(), num, drafts, right.data(), kept.data()});
  for (int32_t one : right)
    if (one < 0 || one > drafts) exit(3);
  auto starts = below(num + 1, 0, 1), starts_copy = starts, tiles = starts, lens_copy = lens, table_copy = table;
  for (int64_t i = 0; i < num; i++) starts[i + 1] = starts[i] + lens[i];
  kernels->attention_plan({starts.data(), lens.data(), table.data(), num, width, width, starts_copy.data(),
                           lens_copy.data(), table_copy.data(), tiles.data()});
}

int main(int, char** arguments) {
  core_cpu_use_threads(reinterpret_cast<void*>(GOMP_parallel), reinterpret_cast<void*>(omp_get_max_threads));
  const int times = atoi(arguments[1]);
  for (int variant = 0; core_cpu_variant(variant); variant++) {
    const Kernels* kernels = core_cpu_kernels(variant);
    for (int i = 0; i < times; i++) {
      multiply(kernels->linear_bf16, 2, 64);
      multiply(kernels->linear_q4_1, 32, 320);
      multiply(kernels->linear_q8_0, 32, 544);
      attend(kernels);
      norm_turn_and_act(kernels);
      select(kernels);
    }
    printf("%s:%d\n", core_cpu_variant(variant), times);
  }
}
