// How fast a disk moves blocks through the transfer queue that row pools use.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "mix.h"
#include "stores/segment_file.h"
#include "stores/segment_format.h"
#include "stores/transfer_queue.h"

namespace megalith {
namespace {

// Closes what it opened, whatever happens in between.
struct ProbeFile {
  explicit ProbeFile(const std::string& path) : number(open_segment_file(path, O_RDWR)) {
    if (number < 0) refuse_file(path, "opened");
  }
  ~ProbeFile() { ::close(number); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  const int number;
};

uint64_t next_random(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ull;
  return mix64(state);
}

// About as many rows as one batch of training misses: the queue runs empty once for so many.
constexpr int64_t kTogether = 2048;

struct ProbeFields {
  int64_t file_bytes, block_bytes, transfers, write, in_order, io_uring, depth, threads, seed;
};

}  // namespace
}  // namespace megalith

// Moves `transfers` blocks of an existing file, one after the other or at random places, `depth` at a time; written
// ones are on disk at the end. `seconds` is how long that took, and `uses_io_uring` whether the system allowed it.
MG_EXPORT int32_t mg_disk_probe(const char* path, const int64_t* fields, double* seconds, int32_t* uses_io_uring) {
  return megalith::guarded("measure a disk", [&] {
    const auto& given = *reinterpret_cast<const megalith::ProbeFields*>(fields);
    const std::string name = path;
    const int64_t block = megalith::whole_blocks(given.block_bytes), depth = std::max<int64_t>(1, given.depth);
    const int64_t blocks = std::max<int64_t>(1, given.file_bytes / block);
    const megalith::ProbeFile file(name);
    const megalith::BlockMemory memory = megalith::block_memory(block * depth);
    // Blocks that nothing can store in less than their size.
    auto random = static_cast<uint64_t>(given.seed);
    for (int64_t at = 0; given.write && at + 8 <= block * depth; at += 8) {
      const uint64_t word = megalith::next_random(random);
      std::memcpy(memory.get() + at, &word, sizeof word);
    }
    std::unique_ptr<megalith::TransferQueue> queue;
    if (given.io_uring) queue = megalith::open_io_uring(static_cast<uint32_t>(depth));
    *uses_io_uring = queue != nullptr;
    if (queue == nullptr) queue = megalith::open_transfer_threads(static_cast<int32_t>(given.threads));
    std::vector<megalith::Transfer> batch;
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t done = 0; done < given.transfers;) {
      batch.clear();
      for (; done < given.transfers && static_cast<int64_t>(batch.size()) < megalith::kTogether; ++done) {
        const int64_t number = given.in_order ? done : static_cast<int64_t>(megalith::next_random(random) >> 1);
        // What is read is not looked at, so transfers may share memory.
        char* to = memory.get() + done % depth * block;
        batch.push_back({file.number, given.write != 0, number % blocks * block, block, to, &name});
      }
      queue->start(batch.data(), static_cast<int64_t>(batch.size()));
      queue->finish();
    }
    if (given.write && ::fsync(file.number) != 0) megalith::refuse_file(name, "written");
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    *seconds = spent.count();
  });
}
