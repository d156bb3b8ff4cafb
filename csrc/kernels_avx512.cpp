#define MG_VARIANT avx512
#include "bandwidth_kernels.h"
#include "embedding_kernels.h"
#include "interaction_kernels.h"

const megalith::Kernels& megalith::avx512_kernels() { return avx512::kKernels; }
const megalith::InteractionKernels& megalith::avx512_interaction() { return avx512::kInteraction; }
const megalith::BandwidthKernels& megalith::avx512_bandwidth() { return avx512::kBandwidth; }
