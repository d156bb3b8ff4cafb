#define MG_VARIANT avx2
#include "bandwidth_kernels.h"
#include "embedding_kernels.h"
#include "interaction_kernels.h"

const megalith::Kernels& megalith::avx2_kernels() { return avx2::kKernels; }
const megalith::InteractionKernels& megalith::avx2_interaction() { return avx2::kInteraction; }
const megalith::BandwidthKernels& megalith::avx2_bandwidth() { return avx2::kBandwidth; }
