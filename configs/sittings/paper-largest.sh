#!/usr/bin/env bash
# 500 steps of the paper's largest language model, 4.9 B weights, on one GPU, alone.
set -uo pipefail
. "$(dirname "$0")/common.sh"
export XLA_PYTHON_CLIENT_MEM_FRACTION=${MEM_FRACTION:-0.93}
read -ra more <<<"${MORE:-}"
weft train configs/paper-largest.toml --run runs/paper-largest --set "data.path=$DATA/wikitext-2/train.txt.xz" \
  --set "data.evaluation=$DATA/wikitext-2/valid.txt.xz" "${more[@]}" 2>&1 | tee "$OUT/paper-largest.log" | grep -v "^step .*[1-9]0/"
cp runs/paper-largest/metrics.jsonl "$OUT/paper-largest.jsonl"
nvidia-smi --query-gpu=name,memory.used --format=csv 2>/dev/null
