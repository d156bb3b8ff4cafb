#!/usr/bin/env bash
# (b) Train on two machines with torchrun. Two network namespaces of this machine stand for them: each has its own
# loopback and one interface to the other, no memory is shared, all bytes go through sockets. On real machines run the
# command of `machine` on each, with a folder that both see.
#
#     sudo examples/two_machines.sh [FOLDER]        needs root and iproute2; ROWS=2000000 for a longer run
set -euo pipefail
rows=${ROWS:-60000}
mkdir -p "${1:-journeys/two-machines}" && cd "${1:-journeys/two-machines}"
left=megalith-left-$$ right=megalith-right-$$ port=29517
remove() {
  ip netns del "$left" 2>/dev/null || true
  ip netns del "$right" 2>/dev/null || true
}
trap remove EXIT
ip netns add "$left"
ip netns add "$right"
ip link add eth0 netns "$left" type veth peer name eth0 netns "$right"
ip -n "$left" addr add 10.78.0.1/24 dev eth0
ip -n "$right" addr add 10.78.0.2/24 dev eth0
for host in "$left" "$right"; do
  ip -n "$host" link set eth0 up
  ip -n "$host" link set lo up
done

megalith data synth criteo --rows "$rows" --out clicks --overwrite
settings=(data.path=clicks data.batch_size=512 train.checkpoint_every=50)
machine() { # namespace, number
  ip netns exec "$1" env GLOO_SOCKET_IFNAME=eth0 MEGALITH_SHARED_MEMORY=0 OMP_NUM_THREADS=1 \
    torchrun --nnodes 2 --node-rank "$2" --nproc-per-node 1 --master-addr 10.78.0.1 --master-port "$port" \
    -m megalith train demo "${settings[@]}" --out runs/two --overwrite
}
machine "$right" 1 &
second=$!
machine "$left" 0
wait "$second"

OMP_NUM_THREADS=1 megalith train demo "${settings[@]}" --out runs/one --overwrite
megalith eval runs/two --split test --json > two.json
megalith eval runs/one --split test --json > one.json
megalith report runs/one runs/two --out compare.html
megalith report runs/two --out two-machines.html --chrome-trace trace.json
