// Batched reads and writes of files: through io_uring where the system has it, by a pool of threads where not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"

namespace megalith {

// One read or write. Memory, offset and bytes are aligned as the file wants them.
struct Transfer {
  int file;
  bool write;
  int64_t offset;
  int64_t bytes;
  char* memory;
  const std::string* path;  // of the file, for what is said if it fails
  uint32_t tag = 0;         // what its owner knows it by
};

// Transfers under way. One thread uses a queue at a time.
class TransferQueue {
 public:
  virtual ~TransferQueue() = default;
  // Begins transfers; waits for earlier ones where too many are under way.
  virtual void start(const Transfer* transfers, int64_t count) = 0;
  // Gives the tags of transfers that are done, and waits until there are `least` of them or none is under way. Throws
  // if one failed; then none is under way any more.
  virtual void collect(int64_t least, std::vector<uint32_t>& done) = 0;
  // Memory that many transfers use; the system may prepare it once.
  virtual void prepare_memory(char*, int64_t) {}

  // Waits for all that were started; throws if one of them failed.
  void finish() {
    finished_.clear();
    collect(INT64_MAX, finished_);
  }

 private:
  std::vector<uint32_t> finished_;
};

// Null where the kernel or the container's profile refuses it.
std::unique_ptr<TransferQueue> open_io_uring(uint32_t depth);
std::unique_ptr<TransferQueue> open_transfer_threads(int32_t threads);

// Why a transfer failed; `error` 0 is the end of the file.
std::string transfer_failure(const Transfer& transfer, int error);

}  // namespace megalith
