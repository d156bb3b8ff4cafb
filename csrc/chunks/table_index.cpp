#include "chunks/table_index.h"

namespace megalith {

std::vector<uint32_t> TableIndex::rows_from(int64_t first, int64_t count) const {
  std::vector<uint32_t> found;
  if (count <= 0) return found;
  const auto lowest = static_cast<size_t>(count);
  const auto trim = [&] {
    if (found.size() <= lowest) return;
    std::nth_element(found.begin(), found.begin() + count, found.end());
    found.resize(lowest);
  };
  if (form_ == IndexForm::kArray) {
    for (int64_t row = first; row < rows_ && found.size() < lowest; ++row) {
      if (slots_.as<uint32_t>()[row] != 0) found.push_back(static_cast<uint32_t>(row));
    }
    return found;
  }
  if (form_ == IndexForm::kRankedBitmap) {
    for (int64_t row = first; row < rows_ && found.size() < lowest; ++row) {
      const int64_t at = position(static_cast<uint32_t>(row));
      if (at >= 0 && slots_.as<uint32_t>()[at] != 0) found.push_back(static_cast<uint32_t>(row));
    }
  }
  hash_.for_each([&](uint32_t row, uint32_t&) {
    if (row < first) return;
    found.push_back(row);
    if (found.size() >= 2 * lowest + 1024) trim();
  });
  trim();
  std::sort(found.begin(), found.end());
  return found;
}

void TableIndex::rebuild() {
  const int64_t hash_bytes = SlotHash::bytes_for(size_), ranked_bytes = num_blocks() * int64_t{sizeof(Block)} + 4 * size_;
  const int64_t least = std::min({hash_bytes, ranked_bytes, 4 * rows_});
  const IndexForm form = least == hash_bytes ? IndexForm::kHash
                         : least == ranked_bytes ? IndexForm::kRankedBitmap : IndexForm::kArray;
  if (form == form_ && form == IndexForm::kArray) return;
  if (form == IndexForm::kHash) {
    SlotHash hash(rows_);
    for_each([&](uint32_t row, uint32_t&) { hash.announce(row); });
    hash.make_room();
    for_each([&](uint32_t row, uint32_t& slot) { hash.set(row, slot); });
    hash_ = std::move(hash);
    PageMemory(0).swap(blocks_);
    PageMemory(0).swap(slots_);
  } else if (form == IndexForm::kArray) {
    PageMemory slots(4 * rows_);
    for_each([&](uint32_t row, uint32_t& slot) { slots.as<uint32_t>()[row] = slot; });
    slots_.swap(slots);
    PageMemory(0).swap(blocks_);
    hash_ = SlotHash(rows_);
  } else {
    PageMemory blocks(num_blocks() * int64_t{sizeof(Block)}), slots(4 * size_);
    for_each([&](uint32_t row, uint32_t&) {
      blocks.as<Block>()[row / kBlockRows].bits[row % kBlockRows / 64] |= uint64_t{1} << row % kBlockRows % 64;
    });
    uint32_t before = 0;
    for (int64_t b = 0; b < num_blocks(); ++b) blocks.as<Block>()[b].count(before);
    // In the order of rows, whatever the order they come in.
    for_each([&](uint32_t row, uint32_t& slot) { slots.as<uint32_t>()[rank(blocks.as<Block>(), row)] = slot; });
    blocks_.swap(blocks);
    slots_.swap(slots);
    hash_ = SlotHash(rows_);
  }
  hash_is_empty_ = true;
  form_ = form;
}

}  // namespace megalith
