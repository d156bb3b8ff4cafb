// Files of a segment log, opened past the page cache where the system allows it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace megalith {

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};

// Memory that begins and ends with a block, as transfers past the page cache want it.
using BlockMemory = std::unique_ptr<char, FreeMemory>;
BlockMemory block_memory(int64_t bytes);

// Says of a file what the system has just refused, with the reason.
[[noreturn]] void refuse_file(const std::string& path, const char* what);

int open_segment_file(const std::string& path, int flags);

// What reads of a file begin and end at multiples of: a block, or less where the system says so.
int64_t read_alignment(int file);

}  // namespace megalith
