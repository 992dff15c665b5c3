#!/usr/bin/env bash
# Multi30k. `multi30k.sh sweep`: variants of the recipe side by side on one GPU, judged on validation alone.
# A run that takes longer than LIMIT seconds is stopped, saved and judged as it is.
# `multi30k.sh final`: two recipes, three seeds each of English to German and one to French; test 2016 by the better one.
set -uo pipefail
. "$(dirname "$0")/common.sh"
export XLA_PYTHON_CLIENT_PREALLOCATE=false
from=$DATA/multi30k
data=(--set "data.path=$from/train.lc.norm.tok" --set "data.evaluation.path=$from/val.lc.norm.tok")
read -ra common <<<"${MORE:-}"

train() { # name, words
  local name=$1
  shift
  timeout -s TERM "${LIMIT:-360}" python3 -m weft train configs/multi30k.toml --run "runs/m30k-$name" "${data[@]}" "${common[@]}" "$@" >"runs/m30k-$name.log" 2>&1
}
judge() { # name, words: the mean of the last ten checkpoints, on validation
  local name=$1
  shift
  python3 -m weft eval "runs/m30k-$name" --average 10 --json >"runs/m30k-$name.json" 2>>"runs/m30k-$name.log"
}

if [ "${1:-sweep}" = sweep ]; then
  STEPS=${STEPS:-4000}
  variant() { # name, words
    local name=$1
    shift
    (train "$name" --set train.steps=$STEPS --set eval.every=0 "$@" && judge "$name") &
  }
  variant recipe
  variant old-dropout --set model.attention_dropout=0.3 --set model.hidden_dropout=0.3 --set model.output_dropout=0.3
  variant plain-embedding --set model.embedding_scale=false --set model.embedding_stddev=1.0 --set model.tied_scale=true
  variant bpe-6000 --set tokenizer.vocab=6000 --set model.vocab=6000
  variant sentencepiece --set tokenizer.kind=sentencepiece --set tokenizer.model=bpe
  variant dropout-0.2 --set model.dropout=0.2
  variant smoothing-0.2 --set model.smoothing=0.2
  variant wsd --set schedule.kind=wsd --set schedule.cooldown=$((STEPS / 2)) --set schedule.warmup=1000 --set schedule.end=0.02
  wait
  for result in runs/m30k-*.json; do
    name=$(basename "$result" .json)
    sed "s/^{/{\"variant\": \"${name#m30k-}\", /" "$result"
  done | tee "$OUT/multi30k-sweep.jsonl" | grep -o '"variant[^,]*,\|"loss[^,]*,\|"bleu": [^,]*,' | paste - - -
  for log in runs/m30k-*.log; do tail -3 "$log" | sed "s/^/$(basename "$log"): /"; done >"$OUT/multi30k-sweep.log"
else # two recipes that validation liked, three seeds each: by the better on validation the test set is translated
  declare -A recipes=(
    [sp]="--set tokenizer.kind=sentencepiece --set tokenizer.model=bpe"
    [bpe6k]="--set tokenizer.vocab=6000 --set model.vocab=6000"
  )
  seeds="${SEEDS:-1 2 3}"
  for recipe in sp bpe6k; do
    for seed in $seeds; do
      train de-$recipe-$seed --set seed=$seed --set eval.every=0 ${recipes[$recipe]} &
    done
    train fr-$recipe-1 --set seed=1 --set data.target=fr --set eval.every=0 ${recipes[$recipe]} &
  done
  wait
  since "trained"
  translate() { # run, split
    gunzip -c "$from/$2.lc.norm.tok.en.gz" | python3 -m weft translate "runs/m30k-$1" --average ${AVERAGE:-10} --beam 5 --alpha 1.0 \
      --penalty length --batch 256 >"runs/multi30k-$1-$2.txt" 2>>"runs/m30k-$1.log"
  }
  for recipe in sp bpe6k; do
    for run in $(for seed in $seeds; do echo de-$recipe-$seed; done) fr-$recipe-1; do translate $run val & done
  done
  wait
  python3 configs/sittings/bleu.py "$from" runs | tee "$OUT/multi30k-bleu.txt"
  chosen=$(grep "^de-.* val:" "$OUT/multi30k-bleu.txt" | python3 -c "
import re, sys, collections
found = collections.defaultdict(list)
for line in sys.stdin:
    found[line.split('-')[1]].append(float(re.search(r'BLEU = ([0-9.]+)', line)[1]))
print(max(found, key=lambda name: sum(found[name]) / len(found[name])))")
  since "validation likes $chosen"
  for run in $(for seed in $seeds; do echo de-$chosen-$seed; done) fr-$chosen-1; do translate $run test_2016_flickr & done
  wait
  python3 configs/sittings/bleu.py "$from" runs | tee "$OUT/multi30k-bleu.txt"
  for log in runs/m30k-??-*.log; do tail -3 "$log" | sed "s/^/$(basename "$log"): /"; done >"$OUT/multi30k-final.log"
  for run in runs/m30k-??-*-?; do sed "s/^{/{\"run\": \"$(basename $run)\", /" $run/metrics.jsonl; done >"$OUT/multi30k-final.jsonl"
  tar -czf "$OUT/multi30k-translations.tgz" -C runs $(cd runs && ls multi30k-*.txt)
  since "all"
fi
