// The rows of one task that a batch touches, each with a number: its rank among all touched rows of its table in rising
// order, which is the same wherever columns of the table are.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/backward_batch.h"
#include "optimizer/kernels.h"
#include "optimizer/step.h"

namespace megalith {

// Rows that a list of touched rows is cut at: norms of the rows of a section are exchanged with the same workers.
struct RowSection {
  int64_t table;
  int64_t first;
  int64_t last;
};

struct TouchedRows {
  std::vector<RowSource> once, repeated;                 // (row, source), and (repeated row, index of its sum)
  std::vector<uint32_t> once_numbers, repeated_numbers;  // of these rows among all that the batch touches
  std::vector<RowSource> again;                          // (index of the sum, source)

  // Finds them; writes how many touched rows of its table each section has, if the task is the table's first.
  void find(const BackwardBatch& batch, const TableTask& task, const UpdateKernels& use,
            const std::vector<RowSection>& sections, int64_t* counts);
};

}  // namespace megalith
