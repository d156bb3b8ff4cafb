// The C interface of tiered row pools (ops/stores/tiered.py) and of start values.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "abi.h"
#include "parallel.h"
#include "stores/table_fields.h"
#include "stores/tiered_rows.h"

namespace megalith {
namespace {

// Where the rows of a table lie, and how many numbers of optimizer state a row has.
struct RowMemory {
  char* weight;
  float* first;
  float* second;
  int64_t first_numbers, second_numbers;
};

struct SettingFields {
  int64_t sets, capacity, policy, segment_bytes, max_bytes, layout, io_uring, depth, threads, space_percent;
};

// The threads that resolve and that save take turns.
struct Handle {
  Handle(std::vector<TieredTable> tables, std::vector<PoolPart> parts, int64_t* slot_ids,
         const SettingFields& settings, const SegmentLogSettings& disk)
      : rows(std::move(tables), std::move(parts), slot_ids, settings.sets, settings.capacity,
             static_cast<CachePolicy>(settings.policy), disk) {}
  std::mutex mutex;
  TieredRows rows;
  std::vector<SegmentFile> files;
};

// Holds the lock while an exported function works with the pool.
class Locked {
 public:
  explicit Locked(void* handle) : held_(*static_cast<Handle*>(handle)), lock_(held_.mutex) {}
  Handle* operator->() const { return &held_; }

 private:
  Handle& held_;
  std::lock_guard<std::mutex> lock_;
};

}  // namespace
}  // namespace megalith

using megalith::Handle;
using megalith::Locked;
using megalith::TableFields;
using megalith::TableValues;

MG_EXPORT int32_t mg_start_values(const int64_t* table, int64_t first, int64_t count, void* out) {
  return megalith::guarded("fill rows with start values", [&] {
    const megalith::StartValues start = reinterpret_cast<const TableFields*>(table)->start();
    const int64_t bytes = start.dim * (start.dtype == 0 ? 4 : 2);
    megalith::parallel_for(0, count, 1024, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) start.fill(first + row, static_cast<char*>(out) + row * bytes);
    });
  });
}

// Rows that begin anywhere: `tables` as for start values, `memory` by table (see RowMemory), and of each row its table,
// its slot there and its id. Optimizer state is set to zeros.
MG_EXPORT int32_t mg_start_rows(const int64_t* tables, const int64_t* memory, const int64_t* numbers,
                                const int64_t* slots, const int64_t* ids, int64_t count) {
  return megalith::guarded("begin rows", [&] {
    megalith::parallel_for(0, count, 256, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const megalith::StartValues start = reinterpret_cast<const TableFields*>(tables)[numbers[i]].start();
        const auto& own = reinterpret_cast<const megalith::RowMemory*>(memory)[numbers[i]];
        start.fill(ids[i], own.weight + slots[i] * start.dim * (start.dtype == 0 ? 4 : 2));
        std::fill_n(own.first + slots[i] * own.first_numbers, own.first_numbers, 0.0f);
        std::fill_n(own.second + slots[i] * own.second_numbers, own.second_numbers, 0.0f);
      }
    });
  });
}

MG_EXPORT int32_t mg_tiered_create(const int64_t* settings, const char* folder, const int64_t* tables,
                                   int64_t num_tables, void* const* parts, const int64_t* part_bytes,
                                   int64_t num_parts, int64_t* slot_ids, void** out) {
  return megalith::guarded("make a pool of rows", [&] {
    const auto& given = *reinterpret_cast<const megalith::SettingFields*>(settings);
    std::vector<megalith::TieredTable> described;
    for (int64_t t = 0; t < num_tables; ++t) {
      const auto& fields = reinterpret_cast<const TableFields*>(tables)[t];
      described.push_back({fields.rows, fields.padding, fields.start()});
    }
    std::vector<megalith::PoolPart> pool;
    for (int64_t p = 0; p < num_parts; ++p) pool.push_back({static_cast<char*>(parts[p]), part_bytes[p]});
    megalith::SegmentLogSettings disk;
    disk.folder = folder;
    disk.segment_bytes = given.segment_bytes;
    disk.max_bytes = given.max_bytes;
    disk.layout = static_cast<uint64_t>(given.layout);
    disk.io_uring = given.io_uring != 0;
    disk.depth = static_cast<int32_t>(given.depth);
    disk.threads = static_cast<int32_t>(given.threads);
    disk.space_factor = static_cast<double>(given.space_percent) / 100;
    *out = new Handle(std::move(described), std::move(pool), slot_ids, given, disk);
  });
}

MG_EXPORT void mg_tiered_destroy(void* handle) noexcept { delete static_cast<Handle*>(handle); }

MG_EXPORT int32_t mg_tiered_resolve(void* handle, const int64_t* parts, int64_t num_parts, const void* values,
                                    int32_t index_bytes, int32_t* slots, int64_t batch, int32_t trains) {
  return megalith::guarded("bring rows into memory", [&] {
    const Locked held(handle);
    const auto* described = reinterpret_cast<const TableValues*>(parts);
    const auto number = static_cast<uint32_t>(batch);
    if (index_bytes == 4) {
      held->rows.resolve(described, num_parts, static_cast<const int32_t*>(values), slots, number, trains != 0);
    } else {
      held->rows.resolve(described, num_parts, static_cast<const int64_t*>(values), slots, number, trains != 0);
    }
  });
}

MG_EXPORT int32_t mg_tiered_expect(void* handle, const int64_t* parts, int64_t num_parts, const void* values,
                                   int32_t index_bytes, int64_t batch) {
  return megalith::guarded("look ahead", [&] {
    const Locked held(handle);
    const auto* described = reinterpret_cast<const TableValues*>(parts);
    const auto number = static_cast<uint32_t>(batch);
    if (index_bytes == 4) {
      held->rows.expect(described, num_parts, static_cast<const int32_t*>(values), number);
    } else {
      held->rows.expect(described, num_parts, static_cast<const int64_t*>(values), number);
    }
  });
}

// Takes no lock, as release: the thread that computes must not wait for the one that resolves.
MG_EXPORT int32_t mg_tiered_arrive(void* handle, int64_t batch) {
  return megalith::guarded("read rows", [&] { static_cast<Handle*>(handle)->rows.arrive(static_cast<uint32_t>(batch)); });
}

MG_EXPORT void mg_tiered_release(void* handle, int64_t batch) noexcept {
  static_cast<Handle*>(handle)->rows.release(static_cast<uint32_t>(batch));
}

MG_EXPORT int32_t mg_tiered_flush(void* handle, int64_t* num_files, int64_t* num_words) {
  return megalith::guarded("write rows to disk", [&] {
    const Locked held(handle);
    held->rows.flush();
    held->files = held->rows.log().files();
    *num_files = static_cast<int64_t>(held->files.size());
    *num_words = 0;
    for (const auto& file : held->files) *num_words += static_cast<int64_t>(file.live.size());
  });
}

// The files as they were flushed: names of 21 characters and a zero each, words of live bits of each, and the words.
MG_EXPORT int32_t mg_tiered_files(void* handle, char* names, int64_t* counts, uint64_t* live) {
  return megalith::guarded("list the files of a store", [&] {
    const Locked held(handle);
    for (const auto& file : held->files) {
      std::memcpy(names, file.name.c_str(), 22);
      names += 22;
      *counts++ = static_cast<int64_t>(file.live.size());
      std::memcpy(live, file.live.data(), file.live.size() * 8);
      live += file.live.size();
    }
  });
}

MG_EXPORT int32_t mg_tiered_open(void* handle, const char* names, const int64_t* counts, const uint64_t* live,
                                 int64_t num_files) {
  return megalith::guarded("open the files of a store", [&] {
    const Locked held(handle);
    std::vector<megalith::SegmentFile> files;
    for (int64_t f = 0; f < num_files; ++f) {
      files.push_back({names + f * 22, {live, live + counts[f]}});
      live += counts[f];
    }
    held->rows.open(files);
  });
}

// Counts a file against the bound on disk that the pool does not have, but a checkpoint does.
MG_EXPORT int32_t mg_tiered_keep(void* handle, const char* path) {
  return megalith::guarded("count files of a store", [&] {
    const Locked held(handle);
    held->rows.log().keep(path);
  });
}

MG_EXPORT int32_t mg_tiered_load(void* handle, int64_t table, const int64_t* ids, int64_t count,
                                 const void* const* parts) {
  return megalith::guarded("load rows", [&] {
    const Locked held(handle);
    held->rows.load(table, ids, count, reinterpret_cast<const char* const*>(parts));
  });
}

MG_EXPORT int32_t mg_tiered_drop(void* handle, int64_t table, const int64_t* ids, int64_t count) {
  return megalith::guarded("drop rows", [&] {
    const Locked held(handle);
    held->rows.drop(table, ids, count);
  });
}

MG_EXPORT int32_t mg_tiered_read(void* handle, int64_t table, const int64_t* ids, int64_t count, void* const* parts) {
  return megalith::guarded("read rows", [&] {
    const Locked held(handle);
    held->rows.read(table, ids, count, reinterpret_cast<char* const*>(parts));
  });
}

// Live rows of a segment; `count` is -1 behind the last segment.
MG_EXPORT int32_t mg_tiered_scan(void* handle, int64_t segment, int64_t* tables, int64_t* ids, char* rows,
                                 int64_t row_bytes, int64_t* count) {
  return megalith::guarded("read the rows of a segment", [&] {
    const Locked held(handle);
    int64_t taken = 0;
    const bool there = held->rows.scan(segment, [&](int64_t table, int64_t id, const char* row) {
      tables[taken] = table;
      ids[taken] = id;
      std::memcpy(rows + taken * row_bytes, row, static_cast<size_t>(row_bytes));
      ++taken;
    });
    *count = there ? taken : -1;
  });
}

MG_EXPORT int32_t mg_tiered_statistics(void* handle, int64_t* out) {
  return megalith::guarded("count", [&] {
    const Locked held(handle);
    const auto& rows = held->rows.statistics();
    const auto disk = held->rows.log().statistics();
    const int64_t all[] = {rows.lookups,       rows.hits,          rows.read_rows,     rows.new_rows,
                           rows.evicted,       rows.written_back,  disk.file_bytes,    disk.live_rows,
                           disk.dead_rows,     disk.segments,      disk.written_bytes, disk.appended_rows,
                           disk.moved_rows,    disk.read_bytes,    disk.reads,         held->rows.num_present(),
                           held->rows.num_dirty(), held->rows.index_bytes(), held->rows.directory_bytes(),
                           held->rows.log().memory_bytes()};
    std::memcpy(out, all, sizeof all);
  });
}
