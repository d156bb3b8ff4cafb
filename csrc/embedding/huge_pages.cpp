// Huge pages under embedding tables.
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "abi.h"

// Asks for huge pages under a table: one translation then covers thousands of rows instead of sixteen.
MG_EXPORT void mg_advise_huge_pages(void* from, int64_t bytes) noexcept {
#if defined(__linux__)
  const uintptr_t huge = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + huge - 1) / huge * huge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes)) / huge * huge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)from;
  (void)bytes;
#endif
}
