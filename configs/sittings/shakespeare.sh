#!/usr/bin/env bash
# tinyshakespeare by three seeds at a time on one GPU; MORE: more words for `weft train`.
set -uo pipefail
. "$(dirname "$0")/common.sh"
export XLA_PYTHON_CLIENT_PREALLOCATE=false
read -ra more <<<"${MORE:-}"
for seed in ${SEEDS:-1337 1338 1339}; do
  timeout -s TERM "${LIMIT:-420}" python3 -m weft train configs/shakespeare.toml --run runs/shakespeare-$seed --set "data.path=$DATA/input.txt.xz" \
    --set seed=$seed "${more[@]}" >"runs/shakespeare-$seed.log" 2>&1 &
done
wait
for seed in ${SEEDS:-1337 1338 1339}; do
  tail -2 "runs/shakespeare-$seed.log"
  sed "s/^{/{\"seed\": $seed, /" runs/shakespeare-$seed/metrics.jsonl
done >"$OUT/shakespeare.jsonl"
grep -h "eval loss" runs/shakespeare-*.log | sort -k5 -n | head -4
