// A bounded memory of rows without a record, and what they would be worth: buckets of up to eight entries.
//
// The rows of a table are cut into 64 units of equal length, and each unit into ranges of rows, one for each of its
// buckets. A bucket keeps the entries of the highest utility, of equal ones those of the lower rows, in the order
// of rows: what it holds depends on what was added, not on the order of rows inside one call.
//
// Beneath a map of ids nothing may depend on which row an id has: units are the partitions of ids, a hash of the id says
// which bucket, and ids stand where rows would decide.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "ids/id_hash.h"

namespace megalith {

// A utility of 0 is no entry; these are behind the others.
struct SketchEntry {
  uint32_t row;
  float utility;
};

// As many entries as a bucket of the table has.
struct SketchBucket {
  SketchEntry* first;
  int64_t count;
  const int64_t* raw_ids;

  // What entries are in the order of, and equal utilities are told apart by.
  int64_t order_of(uint32_t row) const { return raw_ids ? raw_ids[row] : row; }

  SketchEntry* begin() const { return first; }
  SketchEntry* end() const { return first + count; }
};

// The units [first_unit, last_unit) of a table; fields as Python fills them.
struct SketchTable {
  int64_t rows;         // of the whole table; of these units where there are `raw_ids`
  int64_t unit_rows;
  int64_t buckets;      // of a unit
  int64_t bucket_rows;
  int64_t first_unit, last_unit;
  int64_t first_row;    // id 0 of callers is this row
  int64_t bucket_entries;
  SketchEntry* entries;
  const int64_t* raw_ids;  // which id a row has, or null where the row is the id

  // [begin, end) of the rows of these units.
  int64_t begin_row() const { return raw_ids ? 0 : first_unit * unit_rows < rows ? first_unit * unit_rows : rows; }
  int64_t end_row() const { return raw_ids ? rows : last_unit * unit_rows < rows ? last_unit * unit_rows : rows; }
  int64_t num_rows() const { return end_row() - begin_row(); }
  int64_t num_buckets() const { return (last_unit - first_unit) * buckets; }

  // The row of an id; refuses one that is not of these units.
  int64_t row_of(int64_t id) const {
    const int64_t row = first_row + id;
    if (id >= 0 && row >= begin_row() && row < end_row()) return row;
    throw std::out_of_range("id " + std::to_string(id) + " is not of the units that a sketch has");
  }
  SketchBucket bucket(int64_t number) const { return {entries + number * bucket_entries, bucket_entries, raw_ids}; }
  SketchBucket bucket_of(int64_t row) const {
    if (raw_ids) {
      const uint64_t hash = hash_id(raw_ids[row]);
      const int64_t unit = id_partition(hash);
      if (unit < first_unit || unit >= last_unit) throw std::out_of_range("a row has an id of another partition");
      const uint32_t inside = hashed_below(static_cast<uint32_t>(hash >> 26), static_cast<uint32_t>(buckets));
      return bucket((unit - first_unit) * buckets + inside);
    }
    const int64_t unit = row / unit_rows, inside = row % unit_rows;
    return bucket((unit - first_unit) * buckets + inside / bucket_rows);
  }
};

// Whether a number may be a utility that is kept.
inline bool is_utility(float number) { return number > 0 && number <= 3.4028234663852886e38f; }

// Of the entry of a row in its bucket, or 0.
float sketch_utility(const SketchBucket& bucket, uint32_t row);
// Adds to the entry of a row in its bucket; whether there is one.
bool sketch_increase(const SketchBucket& bucket, uint32_t row, float utility);
// Adds to the entry of a row, or makes one: where a bucket is full, in place of the smallest if that is smaller.
void sketch_insert(const SketchBucket& bucket, uint32_t row, float utility);
void sketch_remove(const SketchBucket& bucket, uint32_t row);

}  // namespace megalith
