#include "optimizer/touched_rows.h"

#include <algorithm>

#include "optimizer/buffers.h"
#include "optimizer/row_index.h"

namespace megalith {
namespace {

// What a thread keeps from task to task.
struct RankBuffers {
  RepeatedRows repeats;
  std::vector<uint32_t> before_met, before_marked, rows;
  std::vector<RowSource> all, sorted;
};

// How many bits are set before each word; the number of all.
int64_t rank(const std::vector<uint64_t>& words, const UpdateKernels& use, std::vector<uint32_t>& before) {
  before.resize(words.size());
  return use.rank(words.data(), static_cast<int64_t>(words.size()), before.data());
}

// Sorts touched rows by row; those of a row stay in their order.
void sort_by_row(std::vector<RowSource>& touched, std::vector<RowSource>& other, int64_t rows) {
  constexpr int kDigit = 11;
  other.resize(touched.size());
  for (int shift = 0; shift < 32 && rows > int64_t{1} << shift; shift += kDigit) {
    uint32_t next[1 << kDigit] = {};
    const auto digit = [shift](RowSource pair) { return pair >> (32 + shift) & ((1 << kDigit) - 1); };
    for (const RowSource pair : touched) ++next[digit(pair)];
    uint32_t at = 0;
    for (uint32_t& start : next) {
      const uint32_t count = start;
      start = at;
      at += count;
    }
    for (const RowSource pair : touched) other[next[digit(pair)]++] = pair;
    std::swap(touched, other);
  }
}

// rank_of(row) is how many touched rows come before it.
template <class RankOf>
void count_sections(const std::vector<RowSection>& sections, int64_t table, RankOf rank_of, int64_t* counts) {
  for (size_t s = 0; s < sections.size(); ++s) {
    const RowSection& section = sections[s];
    if (section.table != table) continue;
    counts[s] = rank_of(static_cast<uint64_t>(section.last)) - rank_of(static_cast<uint64_t>(section.first));
  }
}

class TouchedRowFinder {
 public:
  TouchedRowFinder(const BackwardBatch& batch, const TableTask& task, const UpdateKernels& use,
                   const std::vector<RowSection>& sections, TouchedRows& found)
      : batch_(batch), task_(task), use_(use), sections_(sections), found_(found) {}

  template <class Index>
  void run(RankBuffers& buffers, int64_t* counts) {
    const TableWork& table = batch_.table(task_.table);
    buffers.repeats.reset(table.num_values, table.lookups[0]->rows);
    if (buffers.repeats.exact()) {
      list_by_rank<Index>(buffers, counts);
    } else {
      list_by_sorting<Index>(buffers, counts);
    }
  }

 private:
  // A bit for each row: numbers are counted off.
  template <class Index>
  void list_by_rank(RankBuffers& buffers, int64_t* counts) {
    RepeatedRows& repeats = buffers.repeats;
    RowSource* all = resized(buffers.all, batch_.table(task_.table).num_values + 1);
    batch_.for_values<Index>(task_, [&](uint64_t row, uint64_t source, bool own, bool touched) {
      repeats.meet(row, touched);
      *all = row << 32 | source;
      all += own;
    });
    const int64_t count = all - buffers.all.data();
    RowSource* once = resized(found_.once, count + 1);
    RowSource* again = resized(found_.again, count + 1);
    rank(repeats.met(), use_, buffers.before_met);
    const std::vector<uint64_t>& marked = repeats.marked();
    buffers.rows.resize(static_cast<size_t>(rank(marked, use_, buffers.before_marked)));
    use_.list(marked.data(), static_cast<int64_t>(marked.size()), buffers.rows.data());
    use_.split({marked.data(), buffers.before_marked.data()}, buffers.all.data(), count, once, again);
    found_.once.resize(static_cast<size_t>(once - found_.once.data()));
    found_.again.resize(static_cast<size_t>(again - found_.again.data()));
    list_repeated(buffers);
    number(buffers, found_.once, found_.once_numbers);
    number(buffers, found_.repeated, found_.repeated_numbers);
    if (task_.piece == 0) {
      count_sections(sections_, task_.table, [&](uint64_t row) { return rank_of(buffers, row); }, counts);
    }
  }

  void list_repeated(RankBuffers& buffers) {
    found_.repeated.clear();
    const uint64_t mask = task_.pieces - 1;
    if (!mask) {
      for (const uint64_t row : buffers.rows) found_.repeated.push_back(row << 32 | found_.repeated.size());
      return;
    }
    // Sums of this piece's rows alone: the index among them instead of the rank among all.
    std::vector<uint32_t>& indices = buffers.rows;
    for (uint32_t& row : indices) {
      const bool own = (row & mask) == task_.piece;
      const uint32_t index = static_cast<uint32_t>(found_.repeated.size());
      if (own) found_.repeated.push_back(uint64_t{row} << 32 | index);
      row = index;
    }
    for (RowSource& pair : found_.again) pair = uint64_t{indices[pair >> 32]} << 32 | static_cast<uint32_t>(pair);
  }

  void number(const RankBuffers& buffers, const std::vector<RowSource>& touched, std::vector<uint32_t>& numbers) const {
    numbers.resize(touched.size());
    use_.number({buffers.repeats.met().data(), buffers.before_met.data()}, touched.data(),
                static_cast<int64_t>(touched.size()), numbers.data());
  }

  int64_t rank_of(const RankBuffers& buffers, uint64_t row) const {
    const std::vector<uint64_t>& met = buffers.repeats.met();
    if (row >> 6 >= met.size()) return int64_t{buffers.before_met.back()} + __builtin_popcountll(met.back());
    const RowSource pair = row << 32;
    uint32_t number;
    use_.number({met.data(), buffers.before_met.data()}, &pair, 1, &number);
    return int64_t{number};
  }

  // Few values of a table of many rows.
  template <class Index>
  void list_by_sorting(RankBuffers& buffers, int64_t* counts) {
    std::vector<RowSource>& all = buffers.all;
    const TableWork& table = batch_.table(task_.table);
    RowSource* end = resized(all, table.num_values + 1);
    batch_.for_values<Index>(task_, [&](uint64_t row, uint64_t source, bool, bool touched) {
      *end = row << 32 | source;
      end += touched;
    });
    all.resize(static_cast<size_t>(end - all.data()));
    sort_by_row(all, buffers.sorted, table.lookups[0]->rows);
    found_.once.clear();
    found_.once_numbers.clear();
    found_.repeated.clear();
    found_.repeated_numbers.clear();
    found_.again.clear();
    buffers.rows.clear();
    const uint64_t mask = task_.pieces - 1;
    for (size_t i = 0; i < all.size();) {
      const uint64_t row = all[i] >> 32;
      size_t last = i + 1;
      while (last < all.size() && all[last] >> 32 == row) ++last;
      const uint32_t number = static_cast<uint32_t>(buffers.rows.size());
      buffers.rows.push_back(static_cast<uint32_t>(row));
      if ((row & mask) == task_.piece && last == i + 1) {
        found_.once.push_back(all[i]);
        found_.once_numbers.push_back(number);
      } else if ((row & mask) == task_.piece) {
        const uint64_t index = found_.repeated.size();
        for (size_t k = i; k < last; ++k) found_.again.push_back(index << 32 | static_cast<uint32_t>(all[k]));
        found_.repeated.push_back(row << 32 | index);
        found_.repeated_numbers.push_back(number);
      }
      i = last;
    }
    if (task_.piece == 0) {
      const std::vector<uint32_t>& rows = buffers.rows;
      count_sections(sections_, task_.table, [&](uint64_t row) {
        return std::lower_bound(rows.begin(), rows.end(), row) - rows.begin();
      }, counts);
    }
  }

  const BackwardBatch& batch_;
  const TableTask& task_;
  const UpdateKernels& use_;
  const std::vector<RowSection>& sections_;
  TouchedRows& found_;
};

}  // namespace

void TouchedRows::find(const BackwardBatch& batch, const TableTask& task, const UpdateKernels& use,
                       const std::vector<RowSection>& sections, int64_t* counts) {
  static thread_local RankBuffers buffers;
  TouchedRowFinder finder(batch, task, use, sections, *this);
  if (batch.index_bytes() == 4) {
    finder.run<int32_t>(buffers, counts);
  } else {
    finder.run<int64_t>(buffers, counts);
  }
}

}  // namespace megalith
