// The C interface of id maps (ops/ids/id_map.py).
#include <cstring>
#include <mutex>

#include "abi.h"
#include "ids/id_map.h"

namespace megalith {
namespace {

// The threads that resolve and that save take turns.
struct IdMapHandle {
  IdMapHandle(const IdMapSettings& settings, const IdTableSettings* tables, int64_t num_tables)
      : map(settings, tables, num_tables) {}
  std::mutex mutex;
  IdMap map;
};

// Holds the lock while an exported function works with the map.
class LockedIdMap {
 public:
  explicit LockedIdMap(void* handle)
      : held_(static_cast<IdMapHandle*>(handle)->map), lock_(static_cast<IdMapHandle*>(handle)->mutex) {}
  IdMap* operator->() const { return &held_; }
  // How many rows began, left and moved.
  void tell(int64_t* counts) const {
    const IdChanges& changes = held_.changes();
    counts[0] = static_cast<int64_t>(changes.begun.size());
    counts[1] = static_cast<int64_t>(changes.left.size());
    counts[2] = static_cast<int64_t>(changes.moved.size());
  }

 private:
  IdMap& held_;
  std::lock_guard<std::mutex> lock_;
};

template <class Row>
void copy_rows(const std::vector<Row>& rows, int64_t* out) {
  if (!rows.empty()) std::memcpy(out, rows.data(), rows.size() * sizeof(Row));
}

}  // namespace
}  // namespace megalith

using megalith::LockedIdMap;

MG_EXPORT int32_t mg_ids_create(const int64_t* settings, const int64_t* tables, int64_t num_tables, void** out) {
  return megalith::guarded("make a map of ids", [&] {
    *out = new megalith::IdMapHandle(*reinterpret_cast<const megalith::IdMapSettings*>(settings),
                                     reinterpret_cast<const megalith::IdTableSettings*>(tables), num_tables);
  });
}

MG_EXPORT void mg_ids_destroy(void* handle) noexcept { delete static_cast<megalith::IdMapHandle*>(handle); }

MG_EXPORT int32_t mg_ids_resolve(void* handle, const int64_t* lookups, int64_t num_lookups, const int64_t* values,
                                 const int64_t* times, int64_t num_values, const double* weights,
                                 const int64_t* segments, int64_t batch, int32_t trains, int32_t* rows,
                                 int64_t* counts) {
  return megalith::guarded("find the rows of ids", [&] {
    const LockedIdMap held(handle);
    const auto number = static_cast<uint32_t>(batch);
    const megalith::IdBatch given{values, times, rows, number, held->protected_from(batch), trains != 0};
    held->resolve(reinterpret_cast<const megalith::IdLookup*>(lookups), num_lookups, num_values, given,
                  {weights, segments});
    held.tell(counts);
  });
}

MG_EXPORT int32_t mg_ids_expire(void* handle, int64_t batch, int64_t time, const double* weights,
                                const int64_t* segments, const double* least_scores, int64_t* counts) {
  return megalith::guarded("let ids expire", [&] {
    const LockedIdMap held(handle);
    held->expire(batch, time, {weights, segments}, least_scores);
    held.tell(counts);
  });
}

MG_EXPORT int32_t mg_ids_change_bound(void* handle, int64_t table, int64_t bound, int64_t* counts) {
  return megalith::guarded("change the bound of a table of ids", [&] {
    const LockedIdMap held(handle);
    held->change_bound(table, bound);
    held.tell(counts);
  });
}

// The rows that the last call began (table, row, id), let go (table, id, row, reason) and moved (table, id, from, to).
MG_EXPORT int32_t mg_ids_changes(void* handle, int64_t* begun, int64_t* left, int64_t* moved) {
  return megalith::guarded("tell which rows changed", [&] {
    const LockedIdMap held(handle);
    megalith::copy_rows(held->changes().begun, begun);
    megalith::copy_rows(held->changes().left, left);
    megalith::copy_rows(held->changes().moved, moved);
  });
}

// `after` is null for the first block.
MG_EXPORT int32_t mg_ids_scan(void* handle, int64_t table, const int64_t* after, int64_t room, int64_t* ids,
                              int32_t* rows, int64_t* last, float* scores, int64_t* times, int64_t* count) {
  return megalith::guarded("list ids", [&] {
    const LockedIdMap held(handle);
    *count = held->whole_table(table).scan(after, room, {ids, rows, last, scores, times});
  });
}

MG_EXPORT int32_t mg_ids_load(void* handle, int64_t table, int64_t* ids, int32_t* rows, int64_t* last, float* scores,
                              int64_t* times, int64_t count, int64_t* counts) {
  return megalith::guarded("load ids", [&] {
    const LockedIdMap held(handle);
    held->load(table, {ids, rows, last, scores, times}, count);
    held.tell(counts);
  });
}

MG_EXPORT int32_t mg_ids_resume(void* handle, int64_t batch, const int64_t* segments) {
  return megalith::guarded("resume a map of ids", [&] { LockedIdMap(handle)->resume(batch, segments); });
}

// Copies the counter of a table out, or, if it `loads`, in.
MG_EXPORT int32_t mg_ids_counter(void* handle, int64_t table, char* bytes, int64_t num_bytes, int32_t loads) {
  return megalith::guarded("copy the counter of a table of ids", [&] {
    const LockedIdMap held(handle);
    char* own = held->whole_table(table).counter();
    if (num_bytes != held->table(table).counter_bytes()) throw std::runtime_error("it has another size");
    if (num_bytes != 0) std::memcpy(loads ? own : bytes, loads ? bytes : own, static_cast<size_t>(num_bytes));
  });
}

MG_EXPORT int32_t mg_ids_statistics(void* handle, int64_t number, int64_t* out) {
  return megalith::guarded("count", [&] {
    const LockedIdMap held(handle);
    const megalith::IdTable& table = held->table(number);
    const megalith::IdStatistics counted = table.statistics();
    const int64_t all[] = {counted.lookups, counted.hits,    counted.admitted, counted.refused, counted.full,
                           counted.left[0], counted.left[1], counted.left[2],  counted.left[3], counted.left[4],
                           table.size(),    table.bound(),   table.index_bytes(), table.use_bytes(),
                           table.queue_bytes(), table.counter_bytes()};
    std::memcpy(out, all, sizeof all);
  });
}

MG_EXPORT int32_t mg_ids_scratch_bytes(void* handle, int64_t* out) {
  return megalith::guarded("count", [&] { *out = LockedIdMap(handle)->scratch_bytes(); });
}

// Forgets all ids of a table.
MG_EXPORT int32_t mg_ids_clear(void* handle, int64_t table) {
  return megalith::guarded("forget ids", [&] { LockedIdMap(handle)->clear(table); });
}
