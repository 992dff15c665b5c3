"""BLEU of translations of Multi30k: tokenised and lower-cased as they are, sacreBLEU parts nothing.

python3 configs/sittings/bleu.py DATA/multi30k OUT
"""

import gzip
import sys
from pathlib import Path

import sacrebleu


def lines(path: Path) -> list[str]:
    return gzip.open(path, "rt", encoding="utf-8").read().splitlines()


def main(data: Path, out: Path) -> None:
    for split in ("val", "test_2016_flickr"):
        for file in sorted(out.glob(f"multi30k-*-{split}.txt")):
            run = file.name.removeprefix("multi30k-").removesuffix(f"-{split}.txt")
            found = file.read_text(encoding="utf-8").splitlines()
            wanted = lines(data / f"{split}.lc.norm.tok.{run[:2]}.gz")
            assert len(found) == len(wanted), f"{file} has {len(found)} lines, and {len(wanted)} are due"
            bleu = sacrebleu.corpus_bleu(found, [wanted], tokenize="none", force=True)
            print(f"{run} {split}: {bleu}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
