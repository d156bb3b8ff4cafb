// What the processor at hand offers, and the table of kernels that is used on it: chosen at run time, never at build
// time.
#include <atomic>

#include "abi.h"
#include "simd/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace megalith {
namespace {

// The same numbers as in src/megalith/ops/native.py.
enum CpuFeature : uint32_t {
  kAvx2 = 1 << 0,
  kFma = 1 << 1,
  kF16c = 1 << 2,
  kAvx512f = 1 << 3,
  kAvx512bw = 1 << 4,
  kAvx512dq = 1 << 5,
  kAvx512vl = 1 << 6,
  kAvx512vnni = 1 << 7,
};

// All that the builds may use, as CMakeLists.txt lists it: a wider one uses what the narrower ones do.
constexpr uint32_t kAvx2Build = kAvx2 | kFma | kF16c;
constexpr uint32_t kAvx512Build = kAvx2Build | kAvx512f | kAvx512bw | kAvx512dq | kAvx512vl;
constexpr uint32_t kVnniBuild = kAvx512Build | kAvx512vnni;

uint32_t cpu_features() {
  uint32_t found = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // These also say whether the system saves the registers.
  if (__builtin_cpu_supports("avx2")) found |= kAvx2;
  if (__builtin_cpu_supports("fma")) found |= kFma;
  if (__builtin_cpu_supports("avx512f")) found |= kAvx512f;
  if (__builtin_cpu_supports("avx512bw")) found |= kAvx512bw;
  if (__builtin_cpu_supports("avx512dq")) found |= kAvx512dq;
  if (__builtin_cpu_supports("avx512vl")) found |= kAvx512vl;
  if (__builtin_cpu_supports("avx512vnni")) found |= kAvx512vnni;
  // Not every compiler knows this one by name. Its registers are those of AVX2.
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C)) found |= kF16c;
#endif
  return found;
}

int32_t level_for(uint32_t features) {
  if ((features & kVnniBuild) == kVnniBuild) return 3;
  if ((features & kAvx512Build) == kAvx512Build) return 2;
  return (features & kAvx2Build) == kAvx2Build ? 1 : 0;
}

int32_t widest_level() {
  static const int32_t level = level_for(cpu_features());
  return level;
}

#if defined(__x86_64__)
// Those of AVX-512, but for products of bytes.
const Kernels& kernels_with_vnni() {
  static const Kernels table = [] {
    Kernels made = avx512_kernels();
    made.dense.bytes = vnni_kernels();
    return made;
  }();
  return table;
}
#endif

const Kernels& kernels_of(int32_t level) {
#if defined(__x86_64__)
  if (level >= 3) return kernels_with_vnni();
  if (level == 2) return avx512_kernels();
  if (level == 1) return avx2_kernels();
#endif
  (void)level;
  return portable_kernels();
}

// The table in use, or null before the first call.
std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  if (const Kernels* table = chosen.load(std::memory_order_relaxed)) return *table;
  const Kernels& widest = kernels_of(widest_level());
  chosen.store(&widest, std::memory_order_relaxed);
  return widest;
}

}  // namespace megalith

// The level of a processor with these features. 0: portable, 1: AVX2 with FMA and F16C, 2: AVX-512 (F, BW, DQ, VL)
// too, 3: and VNNI.
MG_EXPORT int32_t mg_simd_level_for(uint32_t features) noexcept { return megalith::level_for(features); }

// The widest level of this processor.
MG_EXPORT int32_t mg_simd_level() noexcept { return megalith::widest_level(); }

// Makes all kernels those of this level, or of the widest there is if that is less.
MG_EXPORT void mg_use_simd_level(int32_t level) noexcept {
  const int32_t widest = megalith::widest_level();
  megalith::chosen = &megalith::kernels_of(level < widest ? level : widest);
}
