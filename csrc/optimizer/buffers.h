// Memory that is kept from call to call, so that no step pays for fresh pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optimizer/step.h"

namespace megalith {

// At least so many elements, whatever they hold.
template <class T>
T* scratch(std::vector<T>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count + count / 4);
  return buffer.data();
}

// Makes room without filling it, so that filling it later cannot fail. What is in the buffer may be lost.
template <class T>
void make_room(std::vector<T>& buffer, int64_t count) {
  const size_t wanted = static_cast<size_t>(count);
  if (buffer.capacity() >= wanted) return;
  // The old memory is given back first: never both at a time.
  std::vector<T>().swap(buffer);
  buffer.reserve(wanted + wanted / 4);
}

inline RowSource* resized(std::vector<RowSource>& touched, int64_t count) {
  touched.resize(static_cast<size_t>(count));
  return touched.data();
}

}  // namespace megalith
