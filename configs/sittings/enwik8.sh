#!/usr/bin/env bash
# enwik8 within LIMIT seconds, alone on one GPU: `enwik8.sh first`, then, on the same machine, `enwik8.sh longer` goes on from the
# state before the decay of the learning rate. STEPS: how many there are in all (measured in 40 steps where not said).
# TEST=1: the test set is judged at the end, once. ENWIK8: more words for `weft train`.
set -uo pipefail
. "$(dirname "$0")/common.sh"
part=${1:-first} LIMIT=${LIMIT:-555} TEST=${TEST:-0} BATCH=${BATCH:-64}
file=$DATA/enwik8.xz
said=(--set "data.path=$file" --set "data.evaluation.path=$file" --set "train.batch=$BATCH")
read -ra more <<<"${ENWIK8:-}"

speed() { # seconds of a step, by the last row of a run's metrics
  python3 - "$1" <<'P'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
rows = [row for row in rows if "loss" in row][1:]
print(max(row["tokens"] for row in rows) / sorted(row["tokens_per_s"] for row in rows)[len(rows) // 2])
P
}
whole() { python3 -c "print(int($1))"; }

if [ -z "${PER_STEP:-}" ] && [ ! -d runs/probe ]; then
  weft train configs/enwik8.toml --run runs/probe "${said[@]}" "${more[@]}" --set train.steps=40 --set train.log_every=5 \
    --set schedule.cooldown=10 --set eval.every=0 --set checkpoint.every=0 --set checkpoint.last=false
fi
PER_STEP=${PER_STEP:-$(speed runs/probe)}
since "a step takes $PER_STEP s; probe done"
left=$(whole "$LIMIT - $SECONDS - ${RESERVE:-100}") # start, compilation and the evaluations at the end
run=runs/enwik8
if [ "$part" = first ]; then
  steps=${STEPS:-$(whole "$left / $PER_STEP / 100 * 0.98")00}
else
  run=runs/enwik8-longer
  stable=$(ls runs/enwik8/checkpoints | sort -n | head -1)
  cp -r runs/enwik8 $run
  for each in $(ls $run/checkpoints); do [ "$each" = "$stable" ] || rm -r "$run/checkpoints/$each"; done
  rm -f $run/run.json
  steps=${STEPS:-$(whole "$stable / 100 + $left / $PER_STEP / 100 * 0.98")00}
fi
cooldown=$(whole "($steps) * ${DECAY:-0.3}")
since "$steps steps, $cooldown of them down"
weft train configs/enwik8.toml --run $run "${said[@]}" "${more[@]}" --changed --set train.steps=$steps \
  --set schedule.cooldown=$cooldown --set "checkpoint.every=$((steps - cooldown))" 2>&1 | tee "$OUT/enwik8-$part.log" | grep -v "^step .*[1-9]50/"
since "trained"
cp $run/metrics.jsonl "$OUT/enwik8-$part.jsonl"
weft eval $run --data "$file" --range 90_000_000:95_000_000 --window 1024 --stride 256 --batch 256 --set eval.batches=1000000 --json | tee "$OUT/enwik8-$part-valid.json"
since "judged on validation"
if [ "$TEST" = 1 ]; then
  weft eval $run --data "$file" --range 95_000_000:100_000_000 --window 1024 --stride 128 --batch 256 --set eval.batches=1000000 --json | tee "$OUT/enwik8-$part-test.json"
  since "judged on test"
fi
nvidia-smi --query-gpu=name,memory.used --format=csv 2>/dev/null
