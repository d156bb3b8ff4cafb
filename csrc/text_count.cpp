// Counts the keys of many features within a byte budget.
//
// One hash table for each feature. When a table must grow and the budget does not allow it, the largest table
// is sorted and appended to its feature's spill file as a run; at the end the runs are merged as streams. Sums
// do not depend on the order of additions, so the counts are the same for any number of threads and any budget.
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <vector>

#include "abi.h"
#include "key_table.h"

namespace {

using megalith::Entry;
using megalith::KeyTable;
using megalith::throw_errno;

constexpr int64_t kPiece = 256;  // keys between two looks at the room that is left
constexpr int kAhead = 16;       // keys whose slots are fetched in advance

bool by_key(const Entry& a, const Entry& b) { return a.key < b.key; }
bool by_falling_count(const Entry& a, const Entry& b) {
  return a.value != b.value ? a.value > b.value : a.key < b.key;
}
using Order = bool (*)(const Entry&, const Entry&);

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

  void append(const Entry* entries, int64_t count) {
    const char* from = reinterpret_cast<const char*>(entries);
    int64_t left = count * static_cast<int64_t>(sizeof(Entry));
    while (left > 0) {
      const ssize_t written = ::write(handle_, from, static_cast<size_t>(std::min<int64_t>(left, 1 << 26)));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno(errno);
      from += written, left -= written;
    }
    ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  }

  int64_t read(int64_t first, int64_t count, Entry* entries) const {
    const int64_t size = static_cast<int64_t>(sizeof(Entry));
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
  std::vector<Entry> buffer;
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
  const Entry& head() const { return buffer[position]; }
};

template <class Emit>
void merge_runs(const RunFile& file, Order order, int64_t buffer_bytes, Emit emit) {
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

class EntryWriter {
 public:
  explicit EntryWriter(const char* path) : file_(std::fopen(path, "wb")) {
    if (!file_) throw_errno(errno);
  }
  ~EntryWriter() {
    if (file_) std::fclose(file_);
  }
  void write(const Entry* entries, int64_t count) {
    if (std::fwrite(entries, sizeof(Entry), static_cast<size_t>(count), file_) != static_cast<size_t>(count)) {
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

struct Feature {
  std::mutex mutex;
  KeyTable table;
  std::atomic<int64_t> bytes{0};
  std::unique_ptr<RunFile> runs;
};

class Counter {
 public:
  Counter(int64_t num_features, int64_t budget_bytes, const char* folder)
      : features_(static_cast<size_t>(num_features)), budget_bytes_(budget_bytes), folder_(folder) {}

  void add(int64_t index, const uint64_t* keys, const uint8_t* chosen, int64_t count) {
    Feature& feature = features_.at(static_cast<size_t>(index));
    std::unique_lock<std::mutex> lock(feature.mutex);
    for (int64_t begin = 0; begin < count; begin += kPiece) {
      const int64_t end = std::min(count, begin + kPiece);
      while (!feature.table.has_room(end - begin)) make_room(feature, lock);
      for (int64_t i = begin; i < std::min(end, begin + kAhead); ++i) feature.table.prefetch(keys[i]);
      for (int64_t i = begin; i < end; ++i) {
        if (i + kAhead < end) feature.table.prefetch(keys[i + kAhead]);
        if (keys[i] == 0 || (chosen && !chosen[i])) continue;
        ++feature.table.at(keys[i]).value;
      }
    }
  }

  // Writes the entries that occur `minimum` times or more, by falling count and then by key, at most `most` of
  // them (0: all), and forgets the feature.
  int64_t finish(int64_t index, uint64_t minimum, int64_t most, const char* path) {
    Feature& feature = features_.at(static_cast<size_t>(index));
    std::lock_guard<std::mutex> lock(feature.mutex);
    const int64_t limit = most > 0 ? most : INT64_MAX;
    EntryWriter writer(path);
    if (feature.runs) {
      spill(index, feature);
      merge(feature, minimum, limit, std::string(path) + ".runs", &writer);
      feature.runs.reset();
    } else if (feature.table.size() > 0) {
      const int64_t size = feature.table.size();
      Entry* entries = feature.table.compact();
      Entry* last =
          std::partition(entries, entries + size, [&](const Entry& entry) { return entry.value >= minimum; });
      std::sort(entries, last, by_falling_count);
      writer.write(entries, std::min<int64_t>(last - entries, limit));
    }
    used_bytes_ -= feature.table.bytes();
    feature.bytes = 0;
    feature.table = KeyTable();
    writer.close();
    return writer.written;
  }

  int64_t num_spills() const { return num_spills_; }

 private:
  // Called with the feature's lock held; lets it go while other tables are spilled, so that no thread ever
  // waits for one lock while it holds another.
  void make_room(Feature& feature, std::unique_lock<std::mutex>& lock) {
    const int64_t slots = std::max(feature.table.num_slots() * 2, KeyTable::kMinimumSlots);
    const int64_t bytes = slots * static_cast<int64_t>(sizeof(Entry));
    lock.unlock();
    reserve(bytes);
    lock.lock();
    if (feature.table.num_slots() * 2 > slots || feature.table.has_room(kPiece)) {
      used_bytes_ -= bytes;  // another thread was quicker, or this table was the one spilled
      return;
    }
    KeyTable larger(slots);
    larger.insert_all(feature.table);
    used_bytes_ -= feature.table.bytes();
    feature.table = std::move(larger);
    feature.bytes = bytes;
  }

  void reserve(int64_t bytes) {
    std::lock_guard<std::mutex> lock(budget_mutex_);
    while (used_bytes_ + bytes > budget_bytes_) {
      size_t largest = 0;
      for (size_t i = 1; i < features_.size(); ++i) {
        if (features_[i].bytes > features_[largest].bytes) largest = i;
      }
      Feature& feature = features_[largest];
      // Nothing worth spilling: a budget below the smallest tables is exceeded by these.
      if (feature.bytes <= KeyTable::kMinimumSlots * static_cast<int64_t>(sizeof(Entry))) break;
      std::lock_guard<std::mutex> feature_lock(feature.mutex);
      spill(static_cast<int64_t>(largest), feature);
    }
    used_bytes_ += bytes;
  }

  void spill(int64_t index, Feature& feature) {
    if (!feature.runs) {
      feature.runs = std::make_unique<RunFile>(folder_ + "/counts-" + std::to_string(index));
    }
    if (feature.table.size() > 0) {
      const int64_t size = feature.table.size();
      Entry* entries = feature.table.compact();
      std::sort(entries, entries + size, by_key);
      feature.runs->append(entries, size);
      ++num_spills_;
    }
    used_bytes_ -= feature.table.bytes();
    feature.bytes = 0;
    feature.table = KeyTable();
  }

  // Two streaming merges: by key, which sums the runs, then by count, through sorted runs of the survivors.
  void merge(const Feature& feature, uint64_t minimum, int64_t limit, const std::string& path,
             EntryWriter* writer) const {
    RunFile survivors(path);
    const int64_t room = std::clamp<int64_t>(budget_bytes_ / 8 / 16, 4096, 1 << 22);
    std::vector<Entry> kept;
    Entry current{0, 0};
    const auto flush = [&] {
      std::sort(kept.begin(), kept.end(), by_falling_count);
      survivors.append(kept.data(), static_cast<int64_t>(kept.size()));
      kept.clear();
    };
    const auto keep = [&] {
      if (current.key == 0 || current.value < minimum) return;
      kept.push_back(current);
      if (static_cast<int64_t>(kept.size()) == room) flush();
    };
    merge_runs(*feature.runs, by_key, budget_bytes_ / 8, [&](const Entry& entry) {
      if (entry.key != current.key) {
        keep();
        current = entry;
      } else {
        current.value += entry.value;
      }
      return true;
    });
    keep();
    flush();
    merge_runs(survivors, by_falling_count, budget_bytes_ / 8, [&](const Entry& entry) {
      if (writer->written < limit) writer->write(&entry, 1);
      return writer->written < limit;
    });
  }

  std::vector<Feature> features_;
  const int64_t budget_bytes_;
  const std::string folder_;
  std::mutex budget_mutex_;
  std::atomic<int64_t> used_bytes_{0};
  std::atomic<int64_t> num_spills_{0};
};

}  // namespace

MG_EXPORT int32_t mg_count_create(int64_t num_features, int64_t budget_bytes, const char* folder, void** counter) {
  return megalith::guarded("count keys", [&] { *counter = new Counter(num_features, budget_bytes, folder); });
}

// `chosen` (one byte a key, or null for all) says which keys count; key 0 never does.
MG_EXPORT int32_t mg_count_add(void* counter, int64_t feature, const uint64_t* keys, const uint8_t* chosen,
                               int64_t count) {
  return megalith::guarded("count keys", [&] { static_cast<Counter*>(counter)->add(feature, keys, chosen, count); });
}

MG_EXPORT int32_t mg_count_finish(void* counter, int64_t feature, int64_t minimum, int64_t most, const char* path,
                                  int64_t* written) {
  return megalith::guarded("sort counted keys", [&] {
    *written = static_cast<Counter*>(counter)->finish(feature, static_cast<uint64_t>(minimum), most, path);
  });
}

MG_EXPORT int64_t mg_count_num_spills(void* counter) noexcept { return static_cast<Counter*>(counter)->num_spills(); }

MG_EXPORT void mg_count_destroy(void* counter) noexcept { delete static_cast<Counter*>(counter); }
