// CRC-32C of some bytes, by the processor's instruction where it has it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megalith {

uint32_t crc32c(uint32_t before, const void* bytes, size_t count);

}  // namespace megalith
