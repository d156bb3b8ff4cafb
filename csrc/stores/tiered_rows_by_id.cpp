// Rows of a pool by id, beside the batches that train them: loaded, read, dropped, and listed by segment.
#include <cstring>
#include <stdexcept>

#include "stores/tiered_rows.h"

namespace megalith {

void TieredRows::load(int64_t table, const int64_t* ids, int64_t count, const char* const* parts) {
  begin_change();
  settle();
  collect();
  std::vector<char> row(static_cast<size_t>(log_.row_bytes()));
  for (int64_t i = 0; i < count; ++i) {
    char* to = row.data();
    for (size_t p = 0; p < parts_.size(); ++p) {
      std::memcpy(to, parts[p] + i * parts_[p].bytes, static_cast<size_t>(parts_[p].bytes));
      to += parts_[p].bytes;
    }
    const uint64_t key = key_of(table, ids[i]), permuted = permute_(key);
    const uint32_t slot = directory_.find(directory_.place(permuted));
    if (slot != CacheDirectory::kNoSlot && directory_.is_dirty(slot)) num_flushed_dirty_ -= index_.find(permuted) != KeyIndex::kNone;
    append(SegmentLog::kEvicted, permuted, key, row.data());
    if (slot == CacheDirectory::kNoSlot) continue;
    unpack(slot, row.data());
    directory_.set_dirty(slot, false);
  }
  end_change();
}

void TieredRows::drop(int64_t table, const int64_t* ids, int64_t count) {
  begin_change();
  settle();
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t permuted = permute_(key_of(table, ids[i]));
    if (directory_.find(directory_.place(permuted)) != CacheDirectory::kNoSlot) {
      throw std::logic_error("a row that is in memory cannot be dropped from disk alone");
    }
    forget_record(permuted);
  }
  end_change();
}

void TieredRows::read(int64_t table, const int64_t* ids, int64_t count, char* const* parts) {
  begin_change();
  settle();
  const RowTaker take = [&](uint32_t at, const char* row) {
    for (size_t p = 0; p < parts_.size(); ++p) {
      std::memcpy(parts[p] + int64_t{at} * parts_[p].bytes, row, static_cast<size_t>(parts_[p].bytes));
      row += parts_[p].bytes;
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key = key_of(table, ids[i]), permuted = permute_(key);
    const uint32_t slot = directory_.find(directory_.place(permuted));
    const uint32_t record = slot == CacheDirectory::kNoSlot ? index_.find(permuted) : KeyIndex::kNone;
    if (record != KeyIndex::kNone) {
      log_.want({record, static_cast<uint32_t>(i), key, 1, false, &take});
      continue;
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      const int64_t bytes = parts_[p].bytes;
      char* to = parts[p] + i * bytes;
      if (slot != CacheDirectory::kNoSlot) {
        std::memcpy(to, parts_[p].memory + int64_t{slot} * bytes, static_cast<size_t>(bytes));
      } else if (p == 0) {
        tables_[static_cast<size_t>(table)].start.fill(ids[i], to);
      } else {
        std::memset(to, 0, static_cast<size_t>(bytes));
      }
    }
  }
  log_.finish_reads();
  end_change();
}

bool TieredRows::scan(int64_t segment, const std::function<void(int64_t, int64_t, const char*)>& visit) {
  settle();
  return log_.scan(segment, [&](uint32_t, uint64_t key, const char* row) {
    const int64_t table = table_of(key);
    visit(table, static_cast<int64_t>(key - first_keys_[static_cast<size_t>(table)]), row);
  });
}

}  // namespace megalith
