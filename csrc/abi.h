// The C interface that Python loads. Every exported function is declared with MG_EXPORT, takes raw pointers
// and sizes, and is bound once, in src/megalith/ops/native.py.
#pragma once

#include <cstdint>

#define MG_EXPORT extern "C" __attribute__((visibility("default")))

// Raised with every change of a signature; the loader refuses a library of another version.
constexpr int32_t kAbiVersion = 1;
