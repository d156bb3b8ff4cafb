// Sums of floats that do not depend on their order: mantissas are added by exponent, as integers.
#pragma once

#include <cmath>
#include <cstdint>

#include "chunks/chunk_norm.h"

namespace megalith {

// Adds a number to its exponent's mantissas, unless it is negative or not finite; whether it did.
inline bool add_exactly(int64_t* mantissas, float number) {
  const uint32_t bits = bits_of_float(number), exponent = bits >> 23;
  if (bits >= 0x7f800000) return false;
  mantissas[exponent] += (bits & 0x7fffff) | (exponent ? 0x800000 : 0);
  return true;
}

// number ^ (sixteenths / 16) by square roots, which every machine rounds alike.
inline float power_of_sixteenths(float number, int sixteenths) {
  if (sixteenths >= 16) return number;
  float power = 1.0f, root = number;
  for (int bit = 8; bit > 0; bit /= 2) {
    root = std::sqrt(root);
    if (sixteenths & bit) power = power * root;
  }
  return power;
}

}  // namespace megalith
