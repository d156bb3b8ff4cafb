// From the ids of a batch to slots: found on all threads, and what is missing then numbered or begun in the order of the
// batch on one.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "chunks/chunked_rows.h"
#include "parallel.h"

namespace megalith {
namespace {

// Some values of a lookup, and those of them that have no record.
struct ResolveTask {
  int64_t lookup, first, last;
  std::vector<int64_t> missing;
};

constexpr int64_t kTaskValues = 2048, kAhead = 24, kSmallTable = 16384;

// The largest of some values as unsigned numbers: negative ones are larger than any row.
template <class Index>
__attribute__((always_inline)) inline uint64_t largest(const Index* values, const ResolveTask& task) {
  using Unsigned = std::make_unsigned_t<Index>;
  Unsigned most = 0;
  for (int64_t i = task.first; i < task.last; ++i) most = std::max(most, static_cast<Unsigned>(values[i]));
  return most;
}

// Slots of some ids of a table; lists the positions of those without one.
template <class Index>
__attribute__((always_inline)) inline void find_slots(const TableIndex& index, const ChunkedTable& table,
                                                      const Index* values, int32_t* slots, ResolveTask& task) {
  const int64_t last = task.last;
  const auto row = [&](int64_t i) { return static_cast<uint32_t>(values[i]); };
  if (largest(values, task) >= static_cast<uint64_t>(table.rows)) {
    throw std::out_of_range("a batch has an id that its table of " + std::to_string(table.rows) + " rows has not");
  }
  const auto keep = [&](int64_t i, uint32_t slot) {
    if (static_cast<int64_t>(values[i]) == table.padding) {
      slot = kPaddingSlot;
    } else if (slot == 0) {
      slot = kFirstAbsent;
      task.missing.push_back(i);
    }
    slots[i] = static_cast<int32_t>(slot);
  };
  if (index.form() == IndexForm::kArray) {
    const uint32_t* all = index.slots();
    // Slots of a small table are in a cache before long.
    const int64_t ahead = table.rows > kSmallTable ? kAhead : kTaskValues;
    for (int64_t i = task.first; i < last; ++i) {
      if (i + ahead < last) __builtin_prefetch(all + row(i + ahead));
      keep(i, all[row(i)]);
    }
  } else if (index.form() == IndexForm::kRankedBitmap) {
    // What the bitmap says is kept for some rows, so that what it leads to is on its way before it is read.
    constexpr int64_t kGroup = 32;
    int64_t positions[2][kGroup];
    for (int64_t i = task.first; i < std::min(task.first + kGroup, last); ++i) index.prefetch(row(i));
    for (int64_t first = task.first, turn = 0; first < last + kGroup; first += kGroup, turn ^= 1) {
      for (int64_t i = first; i < std::min(first + kGroup, last); ++i) {
        if (i + kGroup < last) index.prefetch(row(i + kGroup));
        const int64_t at = index.position(row(i));
        positions[turn][i - first] = at;
        index.prefetch_at(at, row(i));
      }
      for (int64_t i = std::max(first - kGroup, task.first); i < std::min(first, last); ++i) {
        keep(i, index.find_at(positions[turn ^ 1][i - (first - kGroup)], row(i)));
      }
    }
  } else {
    for (int64_t i = task.first; i < std::min(task.first + kAhead, last); ++i) index.prefetch(row(i));
    for (int64_t i = task.first; i < last; ++i) {
      if (i + kAhead < last) index.prefetch(row(i + kAhead));
      keep(i, index.find(row(i)));
    }
  }
}

template <class Index>
void find_plainly(const TableIndex& index, const ChunkedTable& table, const Index* values, int32_t* slots,
                  ResolveTask& task) {
  find_slots(index, table, values, slots, task);
}

#if defined(__x86_64__)
// The same where the processor counts bits, and compares unsigned numbers, in one instruction.
template <class Index>
__attribute__((target("popcnt,sse4.1"))) void find_counting(const TableIndex& index, const ChunkedTable& table,
                                                     const Index* values, int32_t* slots, ResolveTask& task) {
  find_slots(index, table, values, slots, task);
}

bool counts_bits() {
  __builtin_cpu_init();
  static const bool has = __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.1");
  return has;
}
#endif

template <class Index>
void find_on_this_processor(const TableIndex& index, const ChunkedTable& table, const Index* values, int32_t* slots,
                            ResolveTask& task) {
#if defined(__x86_64__)
  if (counts_bits()) return find_counting(index, table, values, slots, task);
#endif
  find_plainly(index, table, values, slots, task);
}

// Slots of (table, id) pairs that a batch has had so far without a record.
class MissingRows {
 public:
  explicit MissingRows(int64_t count) {
    while (int64_t{1} << bits_ < 2 * count) ++bits_;
    keys_.assign(size_t{1} << bits_, kEmpty);
    slots_.resize(keys_.size());
  }

  // Where the slot of a pair is, and whether it is new.
  uint32_t& find(uint64_t table, uint64_t id, bool& is_new) {
    const uint64_t key = table << 32 | id;
    uint64_t at = (key * 0x9e3779b97f4a7c15ull) >> (64 - bits_);
    for (; keys_[at] != kEmpty && keys_[at] != key; at = (at + 1) & (keys_.size() - 1)) {
    }
    is_new = keys_[at] == kEmpty;
    keys_[at] = key;
    return slots_[at];
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  int bits_ = 4;
  std::vector<uint64_t> keys_;
  std::vector<uint32_t> slots_;
};

}  // namespace

// The slot of a new row if there is room for it, or 0.
uint32_t ChunkedRows::begin_absent(const AbsentRow& row, NewRows& made) {
  const int64_t bytes = record_bytes(made.chunks);
  if (made.chunks == 0 || made.room < bytes) return 0;
  const uint64_t mask = pool_.all_chunks >> (pool_.chunks - made.chunks);
  const uint32_t slot = begin(row.table, row.id, mask);
  made.room -= bytes;
  return slot;
}

template <class Index>
int64_t ChunkedRows::resolve(const ChunkedLookup* lookups, int64_t num_lookups, const Index* values, int32_t* slots,
                             bool trains, NewRows& made, AbsentRow* absent, bool parallel) {
  if (made.chunks < 0 || made.chunks > pool_.chunks) throw std::invalid_argument("a row has not so many chunks");
  std::vector<ResolveTask> tasks;
  for (int64_t n = 0; n < num_lookups; ++n) {
    for (int64_t first = lookups[n].first; first < lookups[n].last; first += kTaskValues) {
      tasks.push_back({n, first, std::min(first + kTaskValues, lookups[n].last), {}});
    }
  }
  const auto count = static_cast<int64_t>(tasks.size());
  for_each_task(count, parallel ? num_workers(count) : 1, [&](int64_t number, int64_t) {
    ResolveTask& task = tasks[static_cast<size_t>(number)];
    const int64_t table = lookups[task.lookup].table;
    find_on_this_processor(index(table), tables_[static_cast<size_t>(table)], values, slots, task);
  });
  if (!trains) return 0;
  int64_t missing = 0, num_absent = 0;
  for (const ResolveTask& task : tasks) missing += static_cast<int64_t>(task.missing.size());
  if (missing == 0) return 0;
  MissingRows seen(missing);
  for (const ResolveTask& task : tasks) {
    const int64_t table = lookups[task.lookup].table;
    for (const int64_t position : task.missing) {
      const auto id = static_cast<int64_t>(values[position]);
      bool is_new = false;
      uint32_t& slot = seen.find(static_cast<uint64_t>(table), static_cast<uint64_t>(id), is_new);
      if (is_new) {
        slot = begin_absent({table, id}, made);
        if (slot == 0) {
          slot = kFirstAbsent + static_cast<uint32_t>(num_absent);
          absent[num_absent++] = {table, id};
        }
      }
      slots[position] = static_cast<int32_t>(slot);
    }
  }
  return num_absent;
}

template int64_t ChunkedRows::resolve(const ChunkedLookup*, int64_t, const int32_t*, int32_t*, bool, NewRows&,
                                      AbsentRow*, bool);
template int64_t ChunkedRows::resolve(const ChunkedLookup*, int64_t, const int64_t*, int32_t*, bool, NewRows&,
                                      AbsentRow*, bool);

}  // namespace megalith
