// Counts the keys of many features within a byte budget.
//
// One hash table for each feature. When a table must grow and the budget does not allow it, the largest table
// is sorted and appended to its feature's spill file as a run; at the end the runs are merged as streams. Sums
// do not depend on the order of additions, so the counts are the same for any number of threads and any budget.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "text/key_table.h"
#include "text/sorted_runs.h"

namespace megalith {
namespace {

constexpr int64_t kChunk = 256;  // keys between two looks at the room that is left

// One feature's keys: its table, and what was spilled of it.
struct FeatureCounts {
  std::mutex mutex;
  KeyTable table;
  std::atomic<int64_t> bytes{0};
  std::unique_ptr<RunFile> runs;
};

class KeyCounter {
 public:
  KeyCounter(int64_t num_features, int64_t budget_bytes, const char* folder)
      : features_(static_cast<size_t>(num_features)), budget_bytes_(budget_bytes), folder_(folder) {}

  void add(int64_t index, const uint64_t* keys, const uint8_t* chosen, int64_t count) {
    FeatureCounts& feature = features_.at(static_cast<size_t>(index));
    std::unique_lock<std::mutex> lock(feature.mutex);
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int64_t end = std::min(count, begin + kChunk);
      while (!feature.table.has_room(end - begin)) make_room(feature, lock);
      for (int64_t i = begin; i < std::min(end, begin + KeyTable::kAhead); ++i) feature.table.prefetch(keys[i]);
      for (int64_t i = begin; i < end; ++i) {
        if (i + KeyTable::kAhead < end) feature.table.prefetch(keys[i + KeyTable::kAhead]);
        if (keys[i] == 0 || (chosen && !chosen[i])) continue;
        ++feature.table.at(keys[i]).value;
      }
    }
  }

  // Writes the entries that occur `minimum` times or more, by falling count and then by key, at most `most` of
  // them (0: all), and forgets the feature.
  int64_t finish(int64_t index, uint64_t minimum, int64_t most, const char* path) {
    FeatureCounts& feature = features_.at(static_cast<size_t>(index));
    std::lock_guard<std::mutex> lock(feature.mutex);
    const int64_t limit = most > 0 ? most : INT64_MAX;
    EntryWriter writer(path);
    if (feature.runs) {
      spill(index, feature);
      merge(feature, minimum, limit, std::string(path) + ".runs", &writer);
      feature.runs.reset();
    } else if (feature.table.size() > 0) {
      const int64_t size = feature.table.size();
      KeyEntry* entries = feature.table.compact();
      KeyEntry* last =
          std::partition(entries, entries + size, [&](const KeyEntry& entry) { return entry.value >= minimum; });
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
  void make_room(FeatureCounts& feature, std::unique_lock<std::mutex>& lock) {
    const int64_t buckets = std::max(feature.table.num_buckets() * 2, KeyTable::kMinimumBuckets);
    const int64_t bytes = buckets * static_cast<int64_t>(sizeof(KeyEntry));
    lock.unlock();
    reserve(bytes);
    lock.lock();
    if (feature.table.num_buckets() * 2 > buckets || feature.table.has_room(kChunk)) {
      used_bytes_ -= bytes;  // another thread was quicker, or this table was the one spilled
      return;
    }
    KeyTable larger(buckets);
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
      FeatureCounts& feature = features_[largest];
      // Nothing worth spilling: a budget below the smallest tables is exceeded by these.
      if (feature.bytes <= KeyTable::kMinimumBuckets * static_cast<int64_t>(sizeof(KeyEntry))) break;
      std::lock_guard<std::mutex> feature_lock(feature.mutex);
      spill(static_cast<int64_t>(largest), feature);
    }
    used_bytes_ += bytes;
  }

  void spill(int64_t index, FeatureCounts& feature) {
    if (!feature.runs) {
      feature.runs = std::make_unique<RunFile>(folder_ + "/counts-" + std::to_string(index));
    }
    if (feature.table.size() > 0) {
      const int64_t size = feature.table.size();
      KeyEntry* entries = feature.table.compact();
      std::sort(entries, entries + size, by_key);
      feature.runs->append(entries, size);
      ++num_spills_;
    }
    used_bytes_ -= feature.table.bytes();
    feature.bytes = 0;
    feature.table = KeyTable();
  }

  // Two streaming merges: by key, which sums the runs, then by count, through sorted runs of the survivors.
  void merge(const FeatureCounts& feature, uint64_t minimum, int64_t limit, const std::string& path,
             EntryWriter* writer) const {
    RunFile survivors(path);
    const int64_t room = std::clamp<int64_t>(budget_bytes_ / 8 / 16, 4096, 1 << 22);
    std::vector<KeyEntry> kept;
    KeyEntry current{0, 0};
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
    merge_runs(*feature.runs, by_key, budget_bytes_ / 8, [&](const KeyEntry& entry) {
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
    merge_runs(survivors, by_falling_count, budget_bytes_ / 8, [&](const KeyEntry& entry) {
      if (writer->written < limit) writer->write(&entry, 1);
      return writer->written < limit;
    });
  }

  std::vector<FeatureCounts> features_;
  const int64_t budget_bytes_;
  const std::string folder_;
  std::mutex budget_mutex_;
  std::atomic<int64_t> used_bytes_{0};
  std::atomic<int64_t> num_spills_{0};
};

}  // namespace
}  // namespace megalith

using megalith::KeyCounter;

MG_EXPORT int32_t mg_count_create(int64_t num_features, int64_t budget_bytes, const char* folder, void** counter) {
  return megalith::guarded("count keys", [&] { *counter = new KeyCounter(num_features, budget_bytes, folder); });
}

// `chosen` (one byte a key, or null for all) says which keys count; key 0 never does.
MG_EXPORT int32_t mg_count_add(void* counter, int64_t feature, const uint64_t* keys, const uint8_t* chosen,
                               int64_t count) {
  return megalith::guarded("count keys", [&] { static_cast<KeyCounter*>(counter)->add(feature, keys, chosen, count); });
}

MG_EXPORT int32_t mg_count_finish(void* counter, int64_t feature, int64_t minimum, int64_t most, const char* path,
                                  int64_t* written) {
  return megalith::guarded("sort counted keys", [&] {
    *written = static_cast<KeyCounter*>(counter)->finish(feature, static_cast<uint64_t>(minimum), most, path);
  });
}

MG_EXPORT int64_t mg_count_num_spills(void* counter) noexcept {
  return static_cast<KeyCounter*>(counter)->num_spills();
}

MG_EXPORT void mg_count_destroy(void* counter) noexcept { delete static_cast<KeyCounter*>(counter); }
