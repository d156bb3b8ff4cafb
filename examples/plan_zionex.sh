#!/usr/bin/env bash
# (e) Plan a run on 16 ZionEX nodes beside an asynchronous parameter-server system of processors, readers included.
# Nothing here needs such machines, or torch beyond its import.
#
#     examples/plan_zionex.sh [FOLDER]
set -euo pipefail
mkdir -p "${1:-journeys/plan-zionex}" && cd "${1:-journeys/plan-zionex}"

for model in neo-a neo-f neo-i; do
  megalith plan --tables "$model" --hardware zionex --pipelined --against cpu-servers --out "$model.json"
done
megalith plan --tables neo-a --hardware zionex --pipelined --against cpu-servers --json > comparison.json
megalith plan --tables neo-a --hardware zionex --pipelined --raw --samples-per-second 1200000
megalith report neo-a.json --out neo-a.html
megalith explore predict dlrm-zionex model=neo-a
