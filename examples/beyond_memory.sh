#!/usr/bin/env bash
# (a) Train tables larger than memory on one machine: with a tenth of the memory the model is the same, bit for bit.
#
#     examples/beyond_memory.sh [FOLDER]        ROWS=2000000 DRAM=64MiB for a longer run
set -euo pipefail
rows=${ROWS:-60000} dram=${DRAM:-5MiB}
mkdir -p "${1:-journeys/beyond-memory}" && cd "${1:-journeys/beyond-memory}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

megalith data synth criteo --rows "$rows" --out clicks --overwrite
megalith data stats clicks --save
settings=(data.path=clicks data.batch_size=256 data.eval_batch_size=256 train.checkpoint_every=50)
megalith train demo "${settings[@]}" --out runs/memory --overwrite
megalith train demo "${settings[@]}" "memory.dram=$dram" --out runs/disk --overwrite

cmp runs/memory/evaluation-valid.json runs/disk/evaluation-valid.json
echo "Both evaluations are the same file: rows on disk change no bit of the model."
megalith eval runs/disk --split test
megalith report runs/disk --out beyond-memory.html
