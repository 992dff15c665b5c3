#!/usr/bin/env bash
# Multi30k. `multi30k.sh sweep`: variants of the recipe side by side on one GPU, judged on validation alone.
# A run that takes longer than LIMIT seconds is stopped, saved and judged as it is.
# `multi30k.sh final [words for weft train]`: three seeds of English to German and one of English to French, judged on test 2016.
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
else
  shift
  train de-1 --set seed=1 "$@" &
  train de-2 --set seed=2 "$@" &
  train de-3 --set seed=3 "$@" &
  train fr-1 --set seed=1 --set data.target=fr "$@" &
  wait
  translate() { # name, language
    judge "$1"
    for set in val test_2016_flickr; do
      gunzip -c "$from/$set.lc.norm.tok.en.gz" | python3 -m weft translate "runs/m30k-$1" --average 10 --beam 5 --alpha 1.0 \
        --penalty length --batch 128 >"$OUT/multi30k-$1-$set.txt" 2>>"runs/m30k-$1.log"
    done
  }
  for each in "de-1 de" "de-2 de" "de-3 de" "fr-1 fr"; do translate $each & done
  wait
  for name in de-1 de-2 de-3 fr-1; do
    sed "s/^{/{\"run\": \"$name\", /" runs/m30k-$name/metrics.jsonl
    sed "s/^{/{\"judged\": \"$name\", /" "runs/m30k-$name.json"
  done >"$OUT/multi30k-final.jsonl"
  python3 configs/sittings/bleu.py "$from" "$OUT" | tee "$OUT/multi30k-bleu.txt"
  tar -czf "$OUT/multi30k-translations.tgz" -C "$OUT" $(cd "$OUT" && ls multi30k-*-val.txt multi30k-*-test_2016_flickr.txt) && rm "$OUT"/multi30k-*-val.txt "$OUT"/multi30k-*-test_2016_flickr.txt
fi
