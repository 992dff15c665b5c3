"""`weft new`: a commented file of a run, from a few questions or options."""

import dataclasses
import json
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import data as texts
from .. import models
from ..data.tokenizers import ByteTokenizer
from ..errors import WeftError, closest
from ..fields import choices_of
from ..train.config import AUTO, ConfigError, RunConfig, parse
from ..train.keys import lines_of
from ..train.processes import gpus_here
from ..train.tables import Optimizer, Schedule
from .terminal import reported, write

EXAMPLES = """Examples:

\b
  weft new mine.toml                              # asks, where someone is there to answer
  weft new mine.toml --data my_texts --steps 2000
  weft new gpt2.toml --model gpt2 --data corpus.jsonl --tokenizer sentencepiece --mesh x=8 --layout batch:x
  weft new en-de.toml --model mt-0.15b --data pairs.tsv

\b
A file that is there is never overwritten.
"""
TINY = "tiny-"
PIECES = 32_000  # of a tokenizer that is learned for a model that says no number itself
TINY_PIECES = 2_000


@dataclasses.dataclass
class RunWishes:
    """What was asked for: a file is made of it."""

    model: str
    data: str
    tokenizer: str
    mesh: str
    layout: str
    steps: int
    batch: int | None
    length: int | None
    rate: float | None

    @property
    def is_tiny(self) -> bool:
        return self.model.startswith(TINY)


def complete_preset(incomplete: str) -> list[str]:
    """The presets of Transformers that begin so."""
    return [name for name in _presets() if name.startswith(incomplete)]


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, like `mine.toml`.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET",
            autocompletion=complete_preset,
            help="A preset, like gpt2, llama-8b, mt-0.15b or t5-base; `?` lists all; tiny-lm if not said.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="A file or folder of texts; `python`, the source of its library, if not said."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="`bytes`, `sentencepiece` (learned), or a folder or file that has one."),
    ] = None,
    mesh: Annotated[str | None, typer.Option(metavar="AXES", help="The mesh, like `rows=2,cols=4`, or `auto`.")] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="RULES", help="The layout, like `batch:rows`; `auto` searches the best.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many steps; 1000 if not said.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Sequences in a batch.")] = None,
    length: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens in a sequence.")] = None,
    rate: Annotated[float | None, typer.Option(min=0, metavar="R", help="The highest learning rate.")] = None,
) -> None:
    """Write a commented file of a run, from a few questions or options.

    Without options it asks, where someone is there to answer. The file is read as `weft train` would read it before it
    is written.
    """
    with reported():
        _check_place(file)
        said = (model, data, tokenizer, mesh, layout, steps, batch, length, rate)
        ask = _ask if all(value is None for value in said) and is_typed() else _take_default
        model = model or ask(
            "Which model? (gpt2, llama-8b, mt-0.15b, t5-base, ...; `?` lists all)", "tiny-lm", _need_preset
        )
        _need_preset(model)
        is_tiny = model.startswith(TINY)
        data = data or ask("What does it learn from: a file or folder of texts?", "python", texts.open_source)
        tokenizer = tokenizer or ask(
            "Its tokenizer: bytes, sentencepiece, or a folder that has one?", "bytes" if is_tiny else "sentencepiece"
        )
        usual = _usual_mesh()
        if mesh is None and layout is None:
            mesh = ask("Over which mesh of processors? ('': one processor)", usual)
        if mesh and layout is None:
            is_usual = mesh == usual
            layout = ask("With which layout? (`auto` searches the best)", "batch:x" if is_usual else AUTO)
        steps = steps or int(ask("How many steps?", "1000", int))
        wishes = RunWishes(model, data, tokenizer, mesh or "", layout or "", steps, batch, length, rate)
        text = file_text(file.stem, wishes)
        config = _read_again(file, text)
        _write_new(file, text)
        write(_summary(file, config))


def file_text(name: str, wishes: RunWishes) -> str:
    """The file of a run, each key with what it means."""
    config = models.preset(wishes.model)
    assert isinstance(config, models.TransformerConfig)
    tiny = {"layers": 2, "d_model": 64, "d_ff": 256} if wishes.is_tiny else {}
    vocab, tokenizer = _tokenizer(wishes, config)
    batch, length = (
        wishes.batch or (16 if wishes.is_tiny else None),
        wishes.length or (64 if wishes.is_tiny else None),
    )
    every = max(1, min(1000, wishes.steps // 5))
    rate = wishes.rate or (3e-3 if wishes.is_tiny else 3e-4)
    lines = [
        f"# A run of {wishes.model}: `weft train FILE` begins it, and goes on with it. Every key: docs/training.md.",
        _line("name", name, "its folder is runs/NAME"),
        _line("seed", 0, "another one begins with other weights, and sees the data in another order"),
        *_place(wishes),
        "",
        "[data]",
        _line("path", wishes.data, "a file or folder of texts; .txt, .jsonl, .tsv of pairs, ..., also compressed"),
        _line("held_out", 0.02, "the share that is not learned from, and judged by"),
        "",
        "[tokenizer]",
        *(_line(key, value, "") for key, value in tokenizer.items()),
        "",
        "[model]",
        _line("preset", wishes.model, "the keys below change it: layers, d_model, heads, positions, dropout, ..."),
        *([_line("vocab", vocab, "as many as the tokenizer has")] if vocab else []),
        *(_line(key, value, "") for key, value in tiny.items()),
        "",
        "[train]",
        _line("steps", wishes.steps, ""),
        _line("batch", batch or config.batch, "sequences in a batch"),
        _line("length", length or config.length, "tokens in a sequence; several texts share one"),
        _line("log_every", max(1, min(50, wishes.steps // 20)), ""),
        "# microbatches = 4      # gradient accumulation: a batch in so many parts",
        "",
        "[optimizer]",
        _line("name", "adamw", _others(Optimizer, "name", "adamw")),
        _line("weight_decay", 0.1, ""),
        "",
        "[schedule]",
        _line("kind", "cosine", _others(Schedule, "kind", "cosine")),
        _line("rate", rate, "the highest learning rate"),
        _line("warmup", min(wishes.steps // 10, 1000), "steps until it is reached"),
        "",
        "[eval]",
        _line("every", every, "steps between evaluations; 0 for none"),
        _line("batches", 16, "at most so many at a time"),
        "",
        "[checkpoint]",
        _line("every", every, "steps between checkpoints"),
        _line("keep", 3, "the last ones are kept, and the best"),
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, comment: str) -> str:
    text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text:<23} # {comment}" if comment else text


def _others(table: type, key: str, taken: str) -> str:
    """What else a key may say."""
    (field,) = [field for field in dataclasses.fields(table) if field.name == key]
    return f"or {', '.join(name for name in choices_of(field) or () if name != taken)}"


def _place(wishes: RunWishes) -> list[str]:
    if wishes.mesh or wishes.layout:
        return [
            _line("mesh", wishes.mesh, "axes of processors; virtual ones where the machine has one"),
            _line("layout", wishes.layout, "which dim is split over which axis; `auto` searches the best"),
        ]
    return [
        "# On several processors (virtual ones where the machine has one), a line says what is split over what:",
        '# mesh = "rows=2,cols=4"',
        '# layout = "batch:rows,heads:cols,d_ff:cols,vocab:cols"',
    ]


def _tokenizer(wishes: RunWishes, config: models.TransformerConfig) -> tuple[int, dict[str, Any]]:
    """The vocabulary of the model, 0 for its own; the table of the tokenizer."""
    if wishes.tokenizer == "bytes":
        return ByteTokenizer(specials=not isinstance(config, models.LMConfig)).vocab, {"kind": "bytes"}
    if wishes.tokenizer == "sentencepiece":
        pieces = TINY_PIECES if wishes.is_tiny else min(config.vocab, PIECES)
        return pieces, {"kind": "sentencepiece", "vocab": pieces}
    return texts.open_tokenizer({"path": wishes.tokenizer}, None, None).vocab, {"path": wishes.tokenizer}


def _presets() -> list[str]:
    return [name for name in models.PRESETS if isinstance(models.preset(name), models.TransformerConfig)]


def _need_preset(name: str) -> None:
    if name not in (known := _presets()):
        raise ConfigError(f"there is no preset `{name}` of a Transformer", fix=closest(name, known))


def _check_place(file: Path) -> None:
    if file.suffix != ".toml":
        raise ConfigError(f"{file} does not end in .toml", fix=f"name it `{file.with_suffix('.toml')}`")
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already", fix="name another file, or remove this one")
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}", fix="make it first, or name a file in one that is there")


def _usual_mesh() -> str:
    """All GPUs of this machine; one processor where there is none or one."""
    gpus = gpus_here()
    return f"x={gpus}" if gpus > 1 else ""


def is_typed() -> bool:
    """Whether someone is there to answer."""
    return sys.stdin.isatty()


def _take_default(question: str, usual: str, check: Callable[[str], Any] | None = None) -> str:
    return usual


def _ask(question: str, usual: str, check: Callable[[str], Any] | None = None) -> str:
    """An answer typed by someone, asked for again where it is none."""
    while True:
        answer: str = typer.prompt(question, default=usual, err=True).strip()
        try:
            if check is not None:
                check(answer)
            return answer
        except (WeftError, ValueError) as error:
            typer.echo(f"  {error.fact}. {error.fix}" if isinstance(error, WeftError) else "  give a number", err=True)


def _read_again(file: Path, text: str) -> RunConfig:
    """The configuration of the text; raises where `weft train` would."""
    config = parse(tomllib.loads(text), lines_of(file, text))
    texts.open_source(config.data)
    return config


def _write_new(file: Path, text: str) -> None:
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigError(f"{file} is there already", fix="name another file, or remove this one") from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}", fix="name a file in a folder of yours"
        ) from None


def _summary(file: Path, config: RunConfig) -> str:
    name = shlex.quote(str(file))
    plan = [] if config.is_open else [f"  weft plan {name} --hardware this"]
    head = f"{file}: {config.model.name}, {config.sized_model.param_count:,} parameters, {config.train.steps:,} steps"
    return "\n".join([head, *plan, f"  weft train {name}"])
