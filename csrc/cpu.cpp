// What the processor at hand offers. Kernels choose their variant from this at run time, never at build time.
#include "abi.h"

MG_EXPORT int32_t mg_abi_version() { return kAbiVersion; }

// 0: portable, 1: AVX2 with FMA, 2: AVX-512 (F, BW, DQ, VL).
MG_EXPORT int32_t mg_simd_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}
