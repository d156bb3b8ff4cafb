#define MG_VARIANT portable
#include "bandwidth_kernels.h"
#include "embedding_kernels.h"
#include "interaction_kernels.h"

const megalith::Kernels& megalith::portable_kernels() { return portable::kKernels; }
const megalith::InteractionKernels& megalith::portable_interaction() { return portable::kInteraction; }
const megalith::BandwidthKernels& megalith::portable_bandwidth() { return portable::kBandwidth; }
