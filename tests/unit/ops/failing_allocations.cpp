// Preloaded by test_allocation_failures.py: makes one allocation of the native core fail, or every new thread.
//
// Only calls of operator new, malloc, aligned_alloc and mmap from inside the core's own code count, so Python and torch
// go on undisturbed. A core that has the C++ library in it has its own operator new, which calls malloc or
// aligned_alloc; one that has not is given that below.
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> until{-1}, failed{0};
std::atomic<bool> no_threads{false};
uintptr_t first = 0, last = 0;

bool fails(void* caller) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(caller);
  if (from < first || from >= last || until.load() < 0) return false;
  if (until.fetch_sub(1) != 0) return false;
  ++failed;
  return true;
}

void* allocated(size_t bytes, size_t alignment, void* caller) {
  void* memory = nullptr;
  if (!fails(caller) && posix_memalign(&memory, alignment, bytes ? bytes : 1) == 0) return memory;
  throw std::bad_alloc();
}

int find(dl_phdr_info* object, size_t, void* inside) {
  const uintptr_t wanted = reinterpret_cast<uintptr_t>(inside);
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    low = std::min<uintptr_t>(low, object->dlpi_addr + part.p_vaddr);
    high = std::max<uintptr_t>(high, object->dlpi_addr + part.p_vaddr + part.p_memsz);
  }
  if (wanted < low || wanted >= high) return 0;
  first = low, last = high;
  return 1;
}

}  // namespace

// The allocation after `count` others fails, of those that the library with this address in it makes.
extern "C" void fail_after(void* inside, int64_t count) {
  dl_iterate_phdr(find, inside);
  failed = 0;
  until = count;
}

extern "C" int64_t stop_failing() {
  until = -1;
  return failed;
}

extern "C" void refuse_threads(int yes) { no_threads = yes != 0; }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* with) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads ? EAGAIN : real(thread, attributes, run, with);
}

extern "C" void* __libc_malloc(size_t bytes);

extern "C" void* malloc(size_t bytes) noexcept {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}

extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  void* memory = nullptr;
  if (fails(__builtin_return_address(0)) || posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  return memory;
}

extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  using Map = void* (*)(void*, size_t, int, int, int, off_t);
  static const Map real = reinterpret_cast<Map>(dlsym(RTLD_NEXT, "mmap"));
  return fails(__builtin_return_address(0)) ? MAP_FAILED : real(at, bytes, protection, flags, file, offset);
}

void* operator new(size_t bytes) { return allocated(bytes, 16, __builtin_return_address(0)); }
void* operator new[](size_t bytes) { return allocated(bytes, 16, __builtin_return_address(0)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocated(bytes, static_cast<size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
