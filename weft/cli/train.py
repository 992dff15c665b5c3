"""`weft train`: a run from its TOML file; the same command goes on with it."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..train.config import read
from ..train.trainer import Listener, Trainer
from .terminal import reported, write

EXAMPLES = """Examples:

\b
  weft train configs/tiny.toml
  weft train configs/tiny.toml --run runs/second --set train.steps=1000 --set seed=1
"""


def train(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The run's TOML file.")],
    run: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; runs/NAME if not said.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the file, like train.steps=1000.")
    ] = None,
) -> None:
    """Train by a TOML file; the same command goes on with a run that was stopped."""
    with reported():
        found = read(config, changes or [])
        folder = run or Path("runs") / found.name
        trainer = Trainer(found, folder, Listener(said=write, logged=_said))
        write(f"{folder}: {trainer.model.name}, {trainer.model.param_count:,} parameters on {trainer.mesh}")
        started = time.perf_counter()
        last = trainer.run()
        if trainer.is_stopped.is_set():
            again = f"weft train {config}" + (f" --run {run}" if run else "")
            write(f"stopped at step {last.get('step')}, saved; goes on with: {again}")
        else:
            write(f"done: step {last.get('step')} in {time.perf_counter() - started:.0f} s")


def _said(row: dict[str, Any]) -> None:
    if "eval" in row:
        found = row["eval"]
        write(f"step {row['step']:>7}  evaluation loss {found['loss']:.3f}  perplexity {found['perplexity']:.2f}")
    else:
        used = "" if row["mfu"] is None else f"  mfu {row['mfu']:.1%}"
        write(f"step {row['step']:>7}  loss {row['loss']:.3f}  {row['tokens_per_s']:,.0f} tokens/s{used}")
