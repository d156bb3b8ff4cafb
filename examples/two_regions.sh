#!/usr/bin/env bash
# (e) Plan the training of a large language model over two regions, 1,000 km apart: which part of the parallelism should cross
# the link between them? Pipeline stages send activations, copies send gradients.
#
#     examples/two_regions.sh [FOLDER]
set -euo pipefail
mkdir -p "${1:-journeys/two-regions}" && cd "${1:-journeys/two-regions}"

job() { # name, axes from the innermost devices out
  cat > "$1.yaml" << JOB
name: $1
model: llama3-405b
cluster: two-regions
parallel:
  {tp: 8, pp: 16, dp: 64, micro_batch: 1, global_batch: 2048, sequence_parallel: true, sharding: zero1,
   embedding_as_layer: true, head_as_layer: true, placement: [$2]}
training: {precision: bf16}
JOB
}
job stages-over-regions "tp, dp, pp"
job copies-over-regions "tp, pp, dp"

megalith explore predict stages-over-regions.yaml --report stages.html
megalith explore compare stages-over-regions.yaml copies-over-regions.yaml
megalith explore compare stages-over-regions.yaml copies-over-regions.yaml --json > compared.json
