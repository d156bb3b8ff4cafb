#!/usr/bin/env bash
# (c) Train tables sixteen times smaller, freeze them into bytes, serve them and ask them.
#
#     examples/shrink_and_serve.sh [FOLDER]        ROWS=2000000 for a longer run
set -euo pipefail
rows=${ROWS:-60000}
mkdir -p "${1:-journeys/shrink-and-serve}" && cd "${1:-journeys/shrink-and-serve}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

megalith data synth criteo --rows "$rows" --tail --out clicks --overwrite
settings=(data.path=clicks data.batch_size=256 data.eval_batch_size=256 model.dim=16)
megalith train demo "${settings[@]}" --out runs/dense --overwrite
megalith train demo "${settings[@]}" adaptive.ratio=16 adaptive.chunk=4 --out runs/small --overwrite
megalith report runs/dense runs/small --out compare.html

rm -rf models
megalith export runs/small --out models/small/1 --tables int8 --budget 0.01
megalith predict models/small/1 clicks --split test --out scores.parquet

megalith serve models --http 0 --cards 1 --json > ports.json &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
until [ -s ports.json ]; do kill -0 "$server"; sleep 0.2; done
port=$(python -c 'import json; print(json.load(open("ports.json"))["http"])')
megalith loadtest "http://localhost:$port" --rate 50 --seconds 3 --json > rate.json
python -c 'import json; rate = json.load(open("rate.json")); print(rate["answers"], "requests answered")'
