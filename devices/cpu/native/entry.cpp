// What the library exports: which variants there are, the kernels of one, and the threads to use.
//
// Threads are those of torch's own OpenMP library, which the caller hands over: a second pool in the process would fight
// with it, because idle threads of both spin. Without them everything runs on the calling thread.
#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern const Kernels kernels_generic;
#ifdef HAVE_X86
extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512_bf16;
#endif
#ifdef HAVE_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const Kernels kernels_amx;
#endif

namespace {

struct Variant {
  const char* name;
  const Kernels* kernels;
  bool (*fits)();
};

bool always() { return true; }

#ifdef HAVE_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// Why the tile registers of AMX cannot be used; null where they can. A process must ask the system for them, once; asking
// again changes nothing. Source: Intel, Architecture Instruction Set Extensions Programming Reference, CPUID leaf 7; Linux,
// Documentation/arch/x86/xstate.rst.
const char* why_no_tiles() {
#ifdef HAVE_AMX
  constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
  constexpr long ASK_FOR_STATE = 0x1023, TILE_DATA = 18;
  unsigned a, b, c, d;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE))
    return "this processor has no AMX";
  return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) ? "the system refuses AMX to this process" : nullptr;
#else
  return "compiled without AMX";
#endif
}

#ifdef HAVE_AMX
bool has_amx() { return !why_no_tiles(); }
#endif

// Best first.
const Variant variants[] = {
#ifdef HAVE_AMX
    {"amx", &kernels_amx, has_amx},
#endif
#ifdef HAVE_X86
    {"avx512_bf16", &kernels_avx512_bf16, has_avx512_bf16},
    {"avx512", &kernels_avx512, has_avx512},
    {"avx2", &kernels_avx2, has_avx2},
#endif
    {"generic", &kernels_generic, always},
};
const int num_variants = sizeof variants / sizeof variants[0];

// libgomp's functions; LLVM's and Intel's libraries have them too. Source: gcc, libgomp/libgomp_g.h.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using Number = int (*)();
Parallel parallel = nullptr;
Number max_threads = nullptr;

struct Run {
  Part part;
  const void* job;
  int num, next;
};

// Threads take parts as they come, so it does not matter how many the library gives.
void run_some(void* data) {
  Run& run = *static_cast<Run*>(data);
  for (int part; (part = __atomic_fetch_add(&run.next, 1, __ATOMIC_RELAXED)) < run.num;) run.part(run.job, part, run.num);
}

}  // namespace

int num_threads() {
  const int num = parallel ? max_threads() : 1;
  return num < 1 ? 1 : num;
}

void run_parts(Part part, const void* job, int num) {
  Run run = {part, job, num, 0};
  const int threads = num_threads() < num ? num_threads() : num;
  if (threads == 1) return run_some(&run);
  parallel(run_some, &run, static_cast<unsigned>(threads), 0);
}

// Hash of the source files that this was compiled from.
EXPORT const char* core_cpu_sources() { return SOURCES; }

// Name of the variant at `index`, best first, of those that this processor can run; null past the last.
EXPORT const char* core_cpu_variant(int index) {
  for (int i = 0; i < num_variants; i++)
    if (variants[i].fits() && index-- == 0) return variants[i].name;
  return nullptr;
}

// Why there is no variant with AMX; null where there is one.
EXPORT const char* core_cpu_why_no_tiles() { return why_no_tiles(); }

// Kernels of the variant at `index`, counted in the same way; null past the last.
EXPORT const Kernels* core_cpu_kernels(int index) {
  for (int i = 0; i < num_variants; i++)
    if (variants[i].fits() && index-- == 0) return variants[i].kernels;
  return nullptr;
}

// GOMP_parallel and omp_get_max_threads of the library that torch uses.
EXPORT void core_cpu_use_threads(void* run_parallel, void* get_max_threads) {
  parallel = reinterpret_cast<Parallel>(run_parallel);
  max_threads = reinterpret_cast<Number>(get_max_threads);
}

// Calls of a recorded step, in order. Returns how many were made: fewer than `num` when memory was short for the next one.
EXPORT int64_t core_cpu_replay(const Call* calls, int64_t num) {
  for (int64_t i = 0; i < num; i++) {
    const Call& call = calls[i];
    if (!call.multiply) {
      call.kernel(call.job);
      continue;
    }
    const Product& p = *static_cast<const Product*>(call.job);
    if (call.multiply(p.weight, p.n, p.k, p.x, p.rows, p.row_stride, p.bias, p.y)) return i;
  }
  return num;
}
