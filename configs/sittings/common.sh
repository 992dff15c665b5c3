# What the sittings on a GPU machine share: sourced by the scripts beside it, from the repository's root.
# DATA: the folder with the data (enwik8.xz, input.txt.xz, multi30k/, wikitext-2/); OUT: where what is kept is written.
DATA=${DATA:-runs/carry}
OUT=${OUT:-runs/out}
mkdir -p "$OUT" runs
export PYTHONUNBUFFERED=1
[ -d "$DATA/lib" ] && export PYTHONPATH="$DATA/lib${PYTHONPATH:+:$PYTHONPATH}"
weft() { python3 -m weft "$@"; }
since() { echo "--- $1 at ${SECONDS} s"; }
