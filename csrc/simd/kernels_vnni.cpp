#define MG_VARIANT vnni
#include "dense/byte_kernels.h"
#include "simd/kernels.h"

const megalith::ByteKernels& megalith::vnni_kernels() { return vnni::kByteKernels; }
