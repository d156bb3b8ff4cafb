// The finaliser of splitmix64: every bit of a number reaches every bit of the result.
#pragma once

#include <cstdint>

namespace megalith {

// Expanded wherever it is used, so that kernels may call it: simd/scalar.h says why there must be no copy of its own.
// Keys, partitions, start values and rounding are made of it: it may never change, or runs would not resume.
[[gnu::always_inline]] constexpr uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace megalith
