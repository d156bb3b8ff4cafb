// From types that are known when a kernel is called to those that it is compiled for.
#pragma once

#include <cstdint>

#include "embedding/lookup.h"
#include "simd/half.h"

namespace megalith {
inline namespace MG_VARIANT {

template <class Call>
void with_type(int64_t dtype, Call call) {
  if (dtype == kFloat32) return call(float{});
  if (dtype == kFloat16) return call(Half{});
  return call(BFloat16{});
}

template <class Call>
void with_index(int32_t index_bytes, Call call) {
  return index_bytes == 4 ? call(int32_t{}) : call(int64_t{});
}

}  // namespace MG_VARIANT
}  // namespace megalith
