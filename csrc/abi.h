// The C interface that Python loads. Every exported function is declared with MG_EXPORT, takes raw pointers
// and sizes, and is bound once, in src/megalith/ops/native.py.
//
// No exception crosses it. A function either cannot fail and is noexcept, or it returns a code and does its work
// inside `guarded`; what it finds is written through pointers.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#define MG_EXPORT extern "C" __attribute__((visibility("default")))

// Raised with every change of a signature; the loader refuses a library of another version.
constexpr int32_t kAbiVersion = 28;

namespace megalith {

// What an exported function returns; a negative code is an error number of the operating system.
enum Code : int32_t { kFine = 0, kOutOfMemory = 1, kFailed = 2, kStorageFailed = 3, kCacheFull = 4 };

// A file that cannot be read or written, or is not what it should be; what it says is a whole sentence.
class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Rows of batches under way leave no room in a cache; when one of them is released the same call may be made again.
class CacheFull : public StorageError {
 public:
  using StorageError::StorageError;
};

// The code of the exception being handled. Keeps `doing` and what the exception says for mg_last_error.
int32_t failure_code(const char* doing) noexcept;

// Runs the body of an exported function. `doing` finishes the sentence "There is not enough memory to ..."; a body
// that takes it may say something else once there is something else to say.
template <class Body>
int32_t guarded(const char* doing, Body&& body) noexcept {
  try {
    if constexpr (std::is_invocable_v<Body, const char*&>) {
      body(doing);
    } else {
      body();
    }
    return kFine;
  } catch (...) {
    return failure_code(doing);
  }
}

}  // namespace megalith
