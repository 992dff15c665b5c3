#!/usr/bin/env bash
# Weft and PyTorch, data parallel over all GPUs of this host: `benchmarks/gpu.py` with a batch as large for each GPU as one
# alone has. PyTorch runs DistributedDataParallel under torchrun, Weft the layout `batch:x` in one process.
#
#     benchmarks/multi_gpu.sh [--out multi_gpu.json] [other options of gpu.py]
#
# The 4.9 B and decoding are left out: neither is data parallel in practice. A second call goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
gpus=$(nvidia-smi --list-gpus | wc -l)
echo "$gpus GPUs"
exec "${PYTHON:-python}" benchmarks/gpu.py --gpus "$gpus" --rivals torch,weft --out multi_gpu.json \
    --only deep,paper-4,paper-16,packed,dropout,t5,llama,moe "$@"
