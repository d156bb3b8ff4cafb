#define MG_VARIANT portable
#include "embedding_kernels.h"

const megalith::Kernels& megalith::portable_kernels() { return portable::kKernels; }
