// Functions of single numbers for code that is built once for each variant.
//
// Not those of the standard library: the linker keeps one copy of a template or inline function, whatever the flags it
// was built with, and a copy with AVX-512 instructions could end up under code that runs on any processor. What
// kernels call is in the namespace of their variant; `tests/architecture` checks it.
#pragma once

#include <cstdint>

namespace megalith {
inline namespace MG_VARIANT {

template <class T>
constexpr const T& least(const T& a, const T& b) {
  return b < a ? b : a;
}

template <class T>
constexpr const T& greatest(const T& a, const T& b) {
  return a < b ? b : a;
}

template <class T>
inline void exchange_values(T& a, T& b) {
  const T kept = a;
  a = b;
  b = kept;
}

inline float root(float value) { return __builtin_sqrtf(value); }

}  // namespace MG_VARIANT
}  // namespace megalith
