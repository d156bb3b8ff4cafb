// Files of sorted (key, count) entries: appended as runs, merged as streams.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "text/key_table.h"

namespace megalith {

inline bool by_key(const KeyEntry& a, const KeyEntry& b) { return a.key < b.key; }
inline bool by_falling_count(const KeyEntry& a, const KeyEntry& b) {
  return a.value != b.value ? a.value > b.value : a.key < b.key;
}
using EntryOrder = bool (*)(const KeyEntry&, const KeyEntry&);

// A file of sorted runs, one after the other; it disappears with the object.
class RunFile {
 public:
  explicit RunFile(std::string path) : path_(std::move(path)) {
    handle_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (handle_ < 0) throw_errno(errno);
  }
  ~RunFile() {
    ::close(handle_);
    ::unlink(path_.c_str());
  }
  RunFile(const RunFile&) = delete;

  void append(const KeyEntry* entries, int64_t count) {
    const char* from = reinterpret_cast<const char*>(entries);
    int64_t left = count * static_cast<int64_t>(sizeof(KeyEntry));
    while (left > 0) {
      const ssize_t written = ::write(handle_, from, static_cast<size_t>(std::min<int64_t>(left, 1 << 26)));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno(errno);
      from += written, left -= written;
    }
    ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  }

  int64_t read(int64_t first, int64_t count, KeyEntry* entries) const {
    const int64_t size = static_cast<int64_t>(sizeof(KeyEntry));
    int64_t done = 0;
    while (done < count * size) {
      const ssize_t got = ::pread(handle_, reinterpret_cast<char*>(entries) + done,
                                  static_cast<size_t>(count * size - done), first * size + done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw_errno(got < 0 ? errno : EIO);
      done += got;
    }
    return count;
  }

  std::vector<int64_t> ends;

 private:
  std::string path_;
  int handle_ = -1;
};

// One run read through a small buffer.
struct RunStream {
  const RunFile* file;
  int64_t next, end;
  std::vector<KeyEntry> buffer;
  size_t position = 0;
  int64_t buffer_entries;

  RunStream(const RunFile* source, int64_t from, int64_t to, int64_t entries)
      : file(source), next(from), end(to), buffer_entries(entries) {}

  bool ready() {
    if (position < buffer.size()) return true;
    const int64_t count = std::min(end - next, buffer_entries);
    if (count == 0) return false;
    buffer.resize(static_cast<size_t>(count));
    file->read(next, count, buffer.data());
    next += count, position = 0;
    return true;
  }
  const KeyEntry& head() const { return buffer[position]; }
};

template <class Emit>
void merge_runs(const RunFile& file, EntryOrder order, int64_t buffer_bytes, Emit emit) {
  const int64_t runs = static_cast<int64_t>(file.ends.size());
  const int64_t entries = std::clamp<int64_t>(buffer_bytes / 16 / std::max<int64_t>(runs, 1), 256, 1 << 16);
  std::vector<RunStream> streams;
  for (int64_t run = 0; run < runs; ++run) {
    streams.emplace_back(&file, run == 0 ? 0 : file.ends[run - 1], file.ends[run], entries);
  }
  const auto later = [&](int64_t a, int64_t b) { return order(streams[b].head(), streams[a].head()); };
  std::priority_queue<int64_t, std::vector<int64_t>, decltype(later)> heads(later);
  for (int64_t run = 0; run < runs; ++run) {
    if (streams[run].ready()) heads.push(run);
  }
  while (!heads.empty()) {
    const int64_t run = heads.top();
    heads.pop();
    if (!emit(streams[run].head())) return;
    ++streams[run].position;
    if (streams[run].ready()) heads.push(run);
  }
}

// The file of a finished feature.
class EntryWriter {
 public:
  explicit EntryWriter(const char* path) : file_(std::fopen(path, "wb")) {
    if (!file_) throw_errno(errno);
  }
  ~EntryWriter() {
    if (file_) std::fclose(file_);
  }
  void write(const KeyEntry* entries, int64_t count) {
    if (std::fwrite(entries, sizeof(KeyEntry), static_cast<size_t>(count), file_) != static_cast<size_t>(count)) {
      throw_errno(errno);
    }
    written += count;
  }
  void close() {
    const int result = std::fclose(file_);
    file_ = nullptr;
    if (result != 0) throw_errno(errno);
  }
  int64_t written = 0;

 private:
  std::FILE* file_;
};

}  // namespace megalith
