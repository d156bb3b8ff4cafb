#include "stores/crc32c.h"

#include <array>
#include <cstring>

namespace megalith {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
    table[i] = value;
  }
  return table;
}

uint32_t by_table(uint32_t crc, const unsigned char* at, size_t count) {
  static constexpr auto table = make_table();
  for (; count > 0; --count) crc = crc >> 8 ^ table[(crc ^ *at++) & 255];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const unsigned char* at, size_t count) {
  uint64_t value = crc;
  for (; count >= 8; count -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    value = __builtin_ia32_crc32di(value, word);
  }
  for (; count > 0; --count) value = __builtin_ia32_crc32qi(static_cast<uint32_t>(value), *at++);
  return static_cast<uint32_t>(value);
}
#endif

}  // namespace

uint32_t crc32c(uint32_t before, const void* bytes, size_t count) {
  const auto* at = static_cast<const unsigned char*>(bytes);
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2");
  if (has) return ~by_instruction(~before, at, count);
#endif
  return ~by_table(~before, at, count);
}

}  // namespace megalith
