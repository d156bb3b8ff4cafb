#include "stores/segment_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "abi.h"
#include "stores/segment_format.h"

namespace megalith {

BlockMemory block_memory(int64_t bytes) {
  void* memory = std::aligned_alloc(static_cast<size_t>(kBlock), static_cast<size_t>(whole_blocks(bytes)));
  if (memory == nullptr) throw std::bad_alloc();
  return BlockMemory(static_cast<char*>(memory));
}

void refuse_file(const std::string& path, const char* what) {
  throw StorageError(path + " could not be " + what + ": " + std::strerror(errno) + ".");
}

int open_segment_file(const std::string& path, int flags) {
#if defined(O_DIRECT)
  const int direct = ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0644);
  if (direct >= 0 || errno != EINVAL) return direct;
#endif
  return ::open(path.c_str(), flags | O_CLOEXEC, 0644);
}

int64_t read_alignment(int file) {
#if defined(STATX_DIOALIGN)
  struct statx status {};
  if (statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
    const int64_t told = status.stx_dio_offset_align;
    if (told > 0 && kBlock % told == 0) return told < 512 ? 512 : told;
  }
#else
  (void)file;
#endif
  return kBlock;
}

}  // namespace megalith
