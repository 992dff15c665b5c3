#!/usr/bin/env bash
# The first command of a sitting, below 10 minutes: how long a step of enwik8 takes, alone; then Multi30k's variants and
# tinyshakespeare side by side.
set -uo pipefail
cd "$(dirname "$0")/../.."
. configs/sittings/common.sh
for batch in 64 128; do
  python3 -m weft train configs/enwik8.toml --run runs/probe-$batch --set "data.path=$DATA/enwik8.xz" \
    --set "data.evaluation.path=$DATA/enwik8.xz" --set train.batch=$batch --set train.steps=60 --set train.log_every=10 \
    --set schedule.cooldown=10 --set eval.every=0 --set checkpoint.every=0 --set checkpoint.last=false 2>&1 | tail -12
done | tee "$OUT/enwik8-probe.log"
since "probes"
bash configs/sittings/shakespeare.sh &
bash configs/sittings/multi30k.sh sweep &
wait
since "all"
