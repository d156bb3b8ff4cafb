// Optimizers that look at a whole row, over tables some of whose columns lie on other workers: a backward pass in
// two halves, between which sums over the rows are exchanged.
//
// The first half finds the touched rows of each table and adds up their gradients as the fused pass does. Rows that
// occur once keep their bag's gradient; sums are kept for the others only. Every touched row has a number, its rank
// among all of its table in rising order: the same wherever columns of the table are. The second half is one pass
// over weights and states.
#include <algorithm>
#include <vector>

#include "abi.h"
#include "backward_batch.h"
#include "embedding.h"
#include "parallel.h"
#include "row_index.h"

namespace megalith {
namespace {

// The rows of a task between the halves.
struct Piece {
  Task task;
  std::vector<Entry> once, rows;                      // (row, source), and (repeated row, its place among the sums)
  std::vector<uint32_t> once_numbers, rows_numbers;  // of these rows among all that the batch touches
  std::vector<Entry> again;                          // (place among the sums, source)
  Parts parts;
  std::vector<float> sums, scaled;
};

// What a failure of either half is told to leave behind.
constexpr const char* kNotBegun = "update embedding rows whose columns are cut (no row was changed)";
constexpr const char* kHalfway =
    "update embedding rows whose columns are cut (some rows may have been changed; go back to a checkpoint)";

// Rows from one edge to the next: sums over them are exchanged with the same workers.
struct Section {
  int64_t table;
  int64_t first;
  int64_t last;
};

struct Buffers {
  Repeats repeats;
  std::vector<uint32_t> before_met, before_marked, repeated;
  std::vector<Entry> all, sorted;
};

// Sorts entries by row; those of a row stay in their order.
void sort_by_row(std::vector<Entry>& entries, std::vector<Entry>& other, int64_t rows) {
  constexpr int kDigit = 11;
  other.resize(entries.size());
  for (int shift = 0; shift < 32 && rows > int64_t{1} << shift; shift += kDigit) {
    uint32_t places[1 << kDigit] = {};
    const auto digit = [shift](Entry entry) { return entry >> (32 + shift) & ((1 << kDigit) - 1); };
    for (const Entry entry : entries) ++places[digit(entry)];
    uint32_t at = 0;
    for (uint32_t& place : places) {
      const uint32_t count = place;
      place = at;
      at += count;
    }
    for (const Entry entry : entries) other[places[digit(entry)]++] = entry;
    std::swap(entries, other);
  }
}

class CoupledUpdate {
 public:
  CoupledUpdate(const Slot* slots, int64_t num_slots, int64_t num_tables, void* const* weights,
                float* const* first_states, float* const* second_states, const int64_t* columns,
                const Section* sections, int64_t num_sections)
      : slots_(slots, slots + num_slots), weights_(weights, weights + num_tables),
        first_(first_states, first_states + num_tables), second_(second_states, second_states + num_tables),
        columns_(columns, columns + num_tables), sections_(sections, sections + num_sections) {}

  // Finds the touched rows; writes how many each section has.
  void find(const Lookups& lookups, int64_t batch, const float* gradient, int64_t stride,
            const float* const* sequence_gradients, int32_t simd_level, int64_t* counts) {
    use_ = &kernels(simd_level);
    const int64_t num_tables = static_cast<int64_t>(weights_.size());
    const BackwardBatch work(slots_.data(), static_cast<int64_t>(slots_.size()), num_tables, weights_.data(), lookups,
                             batch, gradient, stride, sequence_gradients, placed_);
    const std::vector<Task> tasks = work.cut();
    num_pieces_ = static_cast<int64_t>(tasks.size());
    if (pieces_.size() < tasks.size()) pieces_.resize(tasks.size());
    gradients_.resize(weights_.size());
    for (int64_t table = 0; table < num_tables; ++table) {
      gradients_[static_cast<size_t>(table)] = work.table(table).gradients;
    }
    std::fill_n(counts, sections_.size(), 0);
    for_each_task(num_pieces_, [&](int64_t number) {
      Piece& piece = pieces_[static_cast<size_t>(number)];
      piece.task = tasks[static_cast<size_t>(number)];
      if (lookups.index_bytes == 4) {
        list<int32_t>(work, piece, counts);
      } else {
        list<int64_t>(work, piece, counts);
      }
    });
    counts_.assign(counts, counts + sections_.size());
  }

  // Adds up gradients; writes the sums of squares over these columns of the rows of all sections, in their order.
  // LAMB's moments change here, so all memory that this half and the next need is taken before anything is written.
  void add_up(const Step* steps, float* sums, const char*& doing) {
    steps_.assign(steps, steps + weights_.size());
    starts_.assign(weights_.size() + 1, 0);
    for (size_t s = 0; s < sections_.size(); ++s) {
      const size_t table = static_cast<size_t>(sections_[s].table);
      starts_[table + 1] += counts_[s] * num_sums(static_cast<int>(steps_[table].kind));
    }
    for (size_t table = 0; table < weights_.size(); ++table) starts_[table + 1] += starts_[table];
    for_each_task(num_pieces_, [&](int64_t number) { reserve(pieces_[static_cast<size_t>(number)]); });
    doing = kHalfway;
    for_each_task(num_pieces_, [&](int64_t number) {
      Piece& piece = pieces_[static_cast<size_t>(number)];
      add_repeated(piece);
      visit(piece, sums, 0, use_->add_squares);
    });
  }

  // Takes the step, given sums over the rows' columns everywhere.
  void finish(float* totals, uint64_t seed) {
    for_each_task(num_pieces_, [&](int64_t number) {
      visit(pieces_[static_cast<size_t>(number)], totals, seed, use_->finish);
    });
  }

 private:
  template <class Index>
  void list(const BackwardBatch& work, Piece& piece, int64_t* counts) const {
    static thread_local Buffers buffers;
    const TableWork& table = work.table(piece.task.table);
    buffers.repeats.reset(table.num_values, table.slots[0]->rows);
    if (buffers.repeats.exact()) {
      list_by_rank<Index>(work, piece, buffers, counts);
    } else {
      list_by_sorting<Index>(work, piece, buffers, counts);
    }
  }

  // A bit for each row: numbers are counted off.
  template <class Index>
  void list_by_rank(const BackwardBatch& work, Piece& piece, Buffers& buffers, int64_t* counts) const {
    Repeats& repeats = buffers.repeats;
    Entry* all = resized(buffers.all, work.table(piece.task.table).num_values + 1);
    work.for_values<Index>(piece.task, [&](uint64_t row, uint64_t source, bool own, bool touched) {
      repeats.meet(row, touched);
      *all = row << 32 | source;
      all += own;
    });
    const int64_t count = all - buffers.all.data();
    Entry* once = resized(piece.once, count + 1);
    Entry* again = resized(piece.again, count + 1);
    const auto rank = [&](uint64_t row) {
      if (row >> 6 >= repeats.met().size()) return int64_t{buffers.before_met.back()} + last_word(repeats);
      const Entry entry = row << 32;
      uint32_t number;
      use_->number(repeats.met(), buffers.before_met, &entry, 1, &number);
      return int64_t{number};
    };
    use_->rank(repeats.met(), buffers.before_met, nullptr);
    use_->rank(repeats.marked(), buffers.before_marked, &buffers.repeated);
    use_->deal(repeats.marked(), buffers.before_marked, buffers.all.data(), count, once, again);
    piece.once.resize(static_cast<size_t>(once - piece.once.data()));
    piece.again.resize(static_cast<size_t>(again - piece.again.data()));
    piece.rows.clear();
    const uint64_t mask = piece.task.pieces - 1;
    if (!mask) {
      for (const uint64_t row : buffers.repeated) piece.rows.push_back(row << 32 | piece.rows.size());
    } else {
      // Sums of this piece's rows alone: its place among them instead of the rank among all.
      std::vector<uint32_t>& places = buffers.repeated;
      for (uint32_t& row : places) {
        const bool own = (row & mask) == piece.task.piece;
        const uint32_t place = static_cast<uint32_t>(piece.rows.size());
        if (own) piece.rows.push_back(uint64_t{row} << 32 | place);
        row = place;
      }
      for (Entry& entry : piece.again) entry = uint64_t{places[entry >> 32]} << 32 | static_cast<uint32_t>(entry);
    }
    number(repeats, buffers, piece.once, piece.once_numbers);
    number(repeats, buffers, piece.rows, piece.rows_numbers);
    if (piece.task.piece == 0) count_sections(piece.task.table, rank, counts);
  }

  static int64_t last_word(const Repeats& repeats) { return __builtin_popcountll(repeats.met().back()); }

  void number(const Repeats& repeats, const Buffers& buffers, const std::vector<Entry>& entries,
              std::vector<uint32_t>& numbers) const {
    numbers.resize(entries.size());
    use_->number(repeats.met(), buffers.before_met, entries.data(), static_cast<int64_t>(entries.size()),
                 numbers.data());
  }

  // Few values of a table of many rows.
  template <class Index>
  void list_by_sorting(const BackwardBatch& work, Piece& piece, Buffers& buffers, int64_t* counts) const {
    std::vector<Entry>& all = buffers.all;
    const TableWork& table = work.table(piece.task.table);
    Entry* end = resized(all, table.num_values + 1);
    work.for_values<Index>(piece.task, [&](uint64_t row, uint64_t source, bool, bool touched) {
      *end = row << 32 | source;
      end += touched;
    });
    all.resize(static_cast<size_t>(end - all.data()));
    sort_by_row(all, buffers.sorted, table.slots[0]->rows);
    piece.once.clear();
    piece.once_numbers.clear();
    piece.rows.clear();
    piece.rows_numbers.clear();
    piece.again.clear();
    buffers.repeated.clear();
    const uint64_t mask = piece.task.pieces - 1;
    for (size_t i = 0; i < all.size();) {
      const uint64_t row = all[i] >> 32;
      size_t last = i + 1;
      while (last < all.size() && all[last] >> 32 == row) ++last;
      const uint32_t number = static_cast<uint32_t>(buffers.repeated.size());
      buffers.repeated.push_back(static_cast<uint32_t>(row));
      if ((row & mask) == piece.task.piece && last == i + 1) {
        piece.once.push_back(all[i]);
        piece.once_numbers.push_back(number);
      } else if ((row & mask) == piece.task.piece) {
        const uint64_t place = piece.rows.size();
        for (size_t k = i; k < last; ++k) piece.again.push_back(place << 32 | static_cast<uint32_t>(all[k]));
        piece.rows.push_back(row << 32 | place);
        piece.rows_numbers.push_back(number);
      }
      i = last;
    }
    const std::vector<uint32_t>& rows = buffers.repeated;
    if (piece.task.piece == 0) {
      count_sections(piece.task.table, [&](uint64_t row) {
        return std::lower_bound(rows.begin(), rows.end(), row) - rows.begin();
      }, counts);
    }
  }

  // rank(row) is how many touched rows come before it.
  template <class Rank>
  void count_sections(int64_t table, Rank rank, int64_t* counts) const {
    for (size_t s = 0; s < sections_.size(); ++s) {
      const Section& section = sections_[s];
      if (section.table != table) continue;
      counts[s] = rank(static_cast<uint64_t>(section.last)) - rank(static_cast<uint64_t>(section.first));
    }
  }

  TableUpdate table_update(Piece& piece, uint64_t seed) const {
    const size_t table = static_cast<size_t>(piece.task.table);
    const Slot& slot = *std::find_if(slots_.begin(), slots_.end(), [&](const Slot& one) {
      return one.table == piece.task.table;
    });
    return {slot.dim, slot.dtype, weights_[table], first_[table], second_[table], &steps_[table],
            table_seed(seed, piece.task.table), gradients_[table], piece.scaled.data()};
  }

  void reserve(Piece& piece) const {
    const int64_t dim = table_update(piece, 0).dim, num_rows = static_cast<int64_t>(piece.rows.size());
    piece.parts.reserve(static_cast<int64_t>(piece.again.size()), num_rows, sums_at_a_time(dim));
    scratch(piece.sums, static_cast<size_t>(num_rows * dim));
    scratch(piece.scaled, static_cast<size_t>(dim));
  }

  void add_repeated(Piece& piece) const {
    const TableUpdate work = table_update(piece, 0);
    const int64_t num_rows = static_cast<int64_t>(piece.rows.size()), at_a_time = sums_at_a_time(work.dim);
    piece.parts.cut(piece.again, num_rows, at_a_time);
    const std::vector<int64_t>& bounds = piece.parts.bounds;
    float* sums = piece.sums.data();
    std::fill_n(sums, num_rows * work.dim, 0.0f);
    for (size_t p = 0; p + 1 < bounds.size(); ++p) {
      use_->add_up(work, piece.again.data() + bounds[p], bounds[p + 1] - bounds[p],
                   sums + static_cast<int64_t>(p) * at_a_time * work.dim);
    }
  }

  template <class Kernel>
  void visit(Piece& piece, float* sums, uint64_t seed, Kernel kernel) const {
    TableUpdate work = table_update(piece, seed);
    const size_t table = static_cast<size_t>(piece.task.table);
    float* own = sums + starts_[table];
    kernel(work, piece.once.data(), static_cast<int64_t>(piece.once.size()),
           {piece.once_numbers.data(), own, columns_[table]});
    work.gradients = {piece.sums.data(), work.dim, nullptr, nullptr};
    kernel(work, piece.rows.data(), static_cast<int64_t>(piece.rows.size()),
           {piece.rows_numbers.data(), own, columns_[table]});
  }

  std::vector<Slot> slots_;
  std::vector<void*> weights_;
  std::vector<float*> first_, second_;
  std::vector<int64_t> columns_;
  std::vector<Section> sections_;
  const Kernels* use_ = nullptr;
  // Of the step at hand.
  GradientBuffers placed_;
  std::vector<Piece> pieces_;
  int64_t num_pieces_ = 0;
  std::vector<Gradients> gradients_;
  std::vector<int64_t> counts_, starts_;
  std::vector<Step> steps_;
};

}  // namespace
}  // namespace megalith

using megalith::CoupledUpdate;

MG_EXPORT int32_t mg_coupled_create(const int64_t* slots, int64_t num_slots, int64_t num_tables, void* const* weights,
                                    float* const* first_states, float* const* second_states, const int64_t* columns,
                                    const int64_t* sections, int64_t num_sections, void** update) {
  return megalith::guarded("prepare updates of embedding rows whose columns are cut", [&] {
    *update = new CoupledUpdate(reinterpret_cast<const megalith::Slot*>(slots), num_slots, num_tables, weights,
                                first_states, second_states, columns,
                                reinterpret_cast<const megalith::Section*>(sections), num_sections);
  });
}

MG_EXPORT int32_t mg_coupled_find(void* update, const void* values, int32_t index_bytes, const int64_t* offsets,
                                  const float* sample_weights, int64_t batch, const float* gradient, int64_t stride,
                                  const float* const* sequence_gradients, int32_t simd_level, int64_t* counts) {
  return megalith::guarded(megalith::kNotBegun, [&] {
    static_cast<CoupledUpdate*>(update)->find({values, index_bytes, offsets, sample_weights}, batch, gradient, stride,
                                              sequence_gradients, simd_level, counts);
  });
}

MG_EXPORT int32_t mg_coupled_add_up(void* update, const float* steps, float* sums) {
  return megalith::guarded(megalith::kNotBegun, [&](const char*& doing) {
    static_cast<CoupledUpdate*>(update)->add_up(reinterpret_cast<const megalith::Step*>(steps), sums, doing);
  });
}

MG_EXPORT int32_t mg_coupled_finish(void* update, float* totals, uint64_t seed) {
  return megalith::guarded(megalith::kHalfway, [&] { static_cast<CoupledUpdate*>(update)->finish(totals, seed); });
}

MG_EXPORT void mg_coupled_destroy(void* update) noexcept { delete static_cast<CoupledUpdate*>(update); }
