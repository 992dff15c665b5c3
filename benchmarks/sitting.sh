#!/usr/bin/env bash
# All that one GPU is asked in nine minutes, what matters most first; what is done is kept whatever comes after.
#
#     OUT=results benchmarks/sitting.sh                         # on a GPU
#     OUT=results SMALL=1 TORCH=.../python benchmarks/sitting.sh  # tiny sizes, to try it anywhere
#
# turns.json: rows of Weft and PyTorch in turns. kernels/: what each kernel of a step took. hlo/: what XLA made.
# profile-*: `weft profile`. attention.json: values of the flash kernel. All of these but turns.json lie in all.tgz.
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=$(realpath -m "${OUT:-sitting}") PYTHON=${PYTHON:-python} TORCH=${TORCH:-${PYTHON:-python}} LIMIT=${LIMIT:-535}
small=${SMALL:+--small} kept=$(mktemp -d) cache=$(mktemp -d)
export PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=3
mkdir -p "$OUT" "$kept/kernels" "$kept/hlo"

left() { echo $((LIMIT - SECONDS)); }
keep() { tar czf "$OUT/all.tgz.new" -C "$kept" . && mv "$OUT/all.tgz.new" "$OUT/all.tgz"; echo "--- $SECONDS s"; }
turns() { # ROWS PATIENCE: not begun when less than 45 s are left
    [ "$(left)" -gt 45 ] || { echo "no time: $1"; return; }
    timeout "$(left)" "$PYTHON" benchmarks/turns.py --out "$OUT/turns.json" --only "$1" --patience "$2" --cache "$cache" \
        --profiles "$kept/kernels" --hlo "$kept/hlo" --torch-python "$TORCH" $small ${SMALL:+--seconds 1}
    keep
}
profile() { # ROW OPTION...: the second of a row reads what the first compiled
    [ "$(left)" -gt 45 ] || { echo "no time: profile $1"; return; }
    local row=$1 file="$kept/profile-$1.${2:-text}"
    shift
    JAX_COMPILATION_CACHE_DIR=$cache/profiles timeout 90 "$PYTHON" -m weft profile "benchmarks/profiled.py:$row" "$@" \
        >"$file" 2>"$file.errors" || { echo "profile $row $*: exit $?"; tail -n 5 "$file.errors"; }
    head -n 4 "$file"
    keep
}
attention() { # SECONDS ROWS
    XLA_PYTHON_CLIENT_PREALLOCATE=false timeout "$1" "$PYTHON" benchmarks/attention_kernels.py --rows "$2" \
        --kernels plain,flash --json "$kept/attention.json" $small
}

turns dropout,deep,decode-1,decode-64,decode-8 "${PATIENCE:-190}"
profile dropout
profile deep
attention 60 "bias, softcap;bias, prefix;softcap, prefix;softcap;bias, dropout;prefix;dropout, packed" &  # values only
turns t5 110
wait
turns paper-256 80
profile dropout --json
profile deep --json
keep
