"""`weft generate` and `weft translate`: what a trained run writes."""

import functools
import itertools
import json as json_format
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import data
from ..decode.continuation import Continued, continue_texts, unseen
from ..decode.prompt_files import PromptFile
from ..decode.speculative import AHEAD
from ..decode.translate import BATCH, DecodingError, Translator, batch_for
from ..errors import WeftError
from ..models import EncoderConfig, LMConfig, Seq2SeqConfig
from ..train import Run
from ..train.config import RunConfig
from ..train.own.model import OwnModel
from ..train.stopping import Interrupted
from . import generate_options as options
from .progress import Reporter, stderr_console
from .terminal import reported, write
from .trained import Average, Best, Folder, Json, Layout, Mesh, Step, checkpoint_of, place_for, say

GENERATE_EXAMPLES = """Examples:

\b
  weft generate runs/tiny --prompt "def main("
  weft generate runs/tiny --prompt "import " --tokens 500 --temperature 0.7 --samples 3 --best
  weft generate runs/large --prompt "def main(" --draft runs/tiny
  weft generate runs/tiny --prompt "def main(" --stream
  weft generate runs/tiny --prompts prompts.jsonl --out texts.jsonl --batch 32
"""
TRANSLATE_EXAMPLES = """Examples:

\b
  weft translate runs/en-de < test.en > test.de
  weft translate runs/en-de --beam 1 --average 5 < test.en > test.de
"""
_SAID_AS = {"min_new_tokens": "min-tokens", "ends": "end", "is_begun": "begin"}
CHUNK = 16  # batches of lines read at a time, among which those of like length are put together
SHORT = ("lines", "jsonl")  # formats whose texts are short: most of what is learned begins in the same sequence
INTERRUPTED = 130  # the exit code of what Ctrl-C ended


class Penalty(StrEnum):
    """The length penalties of beam search, by their names there."""

    gnmt = "gnmt"
    length = "length"


def generate(
    run: Folder,
    prompt: options.Prompt = None,
    prompts: options.Prompts = None,
    out: options.Out = None,
    batch: options.Batch = 16,
    tokens: options.Tokens = 200,
    temperature: options.Temperature = 0.8,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.Repetition = 1.0,
    no_repeat_ngram: options.NoRepeat = None,
    min_tokens: options.MinTokens = 0,
    end: options.End = None,
    samples: options.Samples = 1,
    seed: options.Seed = 0,
    begin: options.Begin = None,
    draft: options.Draft = None,
    ngrams: options.Ngrams = None,
    ahead: options.Ahead = AHEAD,
    stream: options.Stream = False,
    step: Step = None,
    best: Best = False,
    average: Average = 1,
    mesh: Mesh = None,
    layout: Layout = None,
    json: Json = False,
) -> None:
    """Continue prompts with a trained language model."""
    with reported(layout=layout):
        opened = Run(run)
        settings = opened.settings
        _check_continues(settings, run)
        at = checkpoint_of(opened, step, best)
        tokenizer = opened.tokenizer
        is_begun = _has_learned_beginnings(settings) if begin is None else begin
        file = _check_prompts(prompt or [], prompts, out, samples, is_apart=stream or json)
        _check_begun(is_begun, [each["prompt"] for each in file.records] if file else prompt or [])
        on, under = place_for(settings, mesh, layout, is_virtual_too=False)
        model = opened.load(on, under, at, average=average)
        chosen: dict[str, Any] = {
            "tokens": tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "no_repeat_ngram": no_repeat_ngram,
            "min_new_tokens": min_tokens,
            "ends": end or [],
            "samples": samples,
            "is_begun": is_begun,
            "ngrams": ngrams, "ahead": ahead,
        }  # fmt: skip
        chosen_too = {**chosen, "draft": None if draft is None else _load_draft(draft, tokenizer, on, under)}
        go_on: Callable[..., list[Continued]] = functools.partial(continue_texts, model, tokenizer, **chosen_too)
        if file:
            size = batch_for(model, batch)
            made_by = _name_options(draft, {**chosen, "batch": size, "seed": seed})
            made_by |= {"the step": at, "the print of the weights": opened.weights_print(at, average)}
            return _continue_file(replace(file, made_by=made_by), go_on, size, seed)
        _tell_of_unseen(prompt or [], model, tokenizer, tokens=tokens, is_begun=is_begun)
        texts = go_on(prompt or [], seed=seed, stream=_write_piece if stream else None)
        if texts[0].accepted is not None:
            say(f"{texts[0].accepted:.0%} of the tokens proposed were accepted")
        if json:
            write(json_format.dumps({"step": at, "samples": [asdict(text) for text in texts]}, ensure_ascii=False))
        else:
            write("" if stream else _join_texts(texts, samples))


def _tell_of_unseen(prompts: list[str], model: Any, tokenizer: data.Tokenizer, **how: Any) -> None:
    for prompt in prompts:
        if cut := unseen(model, tokenizer, prompt, **how):
            read = f"the model reads {model.config.length} tokens"
            say(f"warning: {read}: the first {cut} of {prompt!r:.40} are not seen")


def _check_begun(is_begun: bool, prompts: list[str]) -> None:
    if not is_begun and "" in prompts:
        raise DecodingError("the prompt is empty", fix="give it some text, or say --begin for a text from its start")


def _check_prompts(
    prompt: list[str], prompts: Path | None, out: Path | None, samples: int, *, is_apart: bool
) -> PromptFile | None:
    """The file of prompts, if that is what there is to continue."""
    if bool(prompt) == (prompts is not None):
        which = "both --prompt and --prompts were given" if prompt else "there is no prompt"
        raise DecodingError(which, fix='say `--prompt "..."`, or `--prompts FILE --out FILE`')
    if (prompts is None) != (out is None):
        raise DecodingError("only one of --prompts and --out was given", fix="give both, or neither")
    if prompts is None or out is None:
        return None
    if is_apart:
        fix = "leave out --stream and --json: --out is a file of JSON lines"
        raise DecodingError("--stream and --json print, and --prompts are continued into a file", fix=fix)
    return PromptFile(prompts, out, samples)


def _continue_file(file: PromptFile, go_on: Callable[..., list[Continued]], batch: int, seed: int) -> None:
    """Continues the prompts of a file batch by batch; Ctrl-C leaves what was written."""

    def continue_batch(number: int, prompts: list[str]) -> list[Continued]:
        return go_on(prompts, seed=seed, part=number)

    whole, done = len(file.records), 0
    began = time.monotonic()
    try:
        with Reporter(stderr_console()) as reporter:
            first = None
            for done in file.run(batch, continue_batch):
                first = done if first is None else first
                rate = (done - first) / (time.monotonic() - began)
                reporter.progress("continuing", done, whole, f"{done:,} of {whole:,}, {rate:.1f} a second")
    except KeyboardInterrupt as error:
        say(f"stopped after {done:,} of {whole:,} lines; the same command goes on with them")
        raise typer.Exit(error.status if isinstance(error, Interrupted) else INTERRUPTED) from None
    before = f", {first:,} of them before" if first else ""
    say(f"{done:,} lines in {file.target}{before}, {time.monotonic() - began:.1f} s")


def _write_piece(text: str) -> None:
    """Prints a piece of a text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _load_draft(run: Path, tokenizer: data.Tokenizer, mesh: Any, layout: Any) -> Any:
    """The model of the newest checkpoint of a run, which proposes tokens to another."""
    opened = Run(run)
    _check_continues(opened.settings, run)
    if opened.tokenizer.vocab != tokenizer.vocab:
        raise DecodingError(
            f"the tokenizer of {run} has {opened.tokenizer.vocab} tokens, and the model's has {tokenizer.vocab}",
            fix="give a draft that was trained with the same tokenizer",
        )
    return opened.load(mesh, layout, checkpoint_of(opened, None, False))


def _name_options(draft: Path | None, chosen: dict[str, Any]) -> dict[str, Any]:
    """What lines depend on, by the names of the options."""
    opened = None if draft is None else Run(draft)
    print_ = None if opened is None else opened.weights_print(checkpoint_of(opened, None, False))
    said = {f"--{_SAID_AS.get(name, name.replace('_', '-'))}": value for name, value in chosen.items()}
    return {"the print of the draft": print_, **said}


def _check_continues(settings: RunConfig, run: Path) -> None:
    if isinstance(settings.model, LMConfig):
        return
    what, fix = f"`{settings.model.name}`", "use the run of a language model"
    if isinstance(settings.model, Seq2SeqConfig):
        what, fix = "an encoder-decoder", f"translate with it: `weft translate {run} < texts`"
    elif isinstance(settings.model, EncoderConfig):
        what = "an encoder"
    elif isinstance(settings.model, OwnModel):
        raise _of_own_model(settings.model, run, "continue texts")
    raise DecodingError(f"the model of {run} is {what}, and does not continue texts", fix=fix)


def _of_own_model(model: OwnModel, run: Path, does: str) -> DecodingError:
    what = f"your own, `{model.name}`: it has a loss alone, no logits and no KV cache that texts need"
    return DecodingError(
        f"the model of {run} is {what}, and does not {does}",
        fix=f"write how it is used in Python: `model = weft.train.Run({str(run)!r}).load()`",
    )


def _has_learned_beginnings(settings: RunConfig) -> bool:
    """Whether most sequences the run learned from held the beginning of a text."""
    if settings.train.across:
        return False
    if not settings.train.pack:
        return True
    try:
        return data.open_source(settings.data).format in SHORT
    except WeftError:  # the data are no longer there
        return settings.data.get("documents") == "lines" or settings.data.get("format") in SHORT


def _join_texts(texts: list[Continued], samples: int) -> str:
    """The texts; several with a line above each."""
    if len(texts) == 1:
        return texts[0].text
    names = [
        f"prompt {number // samples + 1}" + (f", sample {number % samples + 1}" if samples > 1 else "")
        for number in range(len(texts))
    ]
    return "\n\n".join(f"--- {name} ---\n{text.text}" for name, text in zip(names, texts, strict=True))


def translate(
    run: Folder,
    beam: Annotated[int, typer.Option(min=1, metavar="N", help="How many translations are followed at once.")] = 5,
    alpha: Annotated[float, typer.Option(help="How much longer translations are favoured; short ones below 0.")] = 0.6,
    penalty: Annotated[
        Penalty, typer.Option(help="Of what alpha is the power: (5 + length) / 6, or the length.")
    ] = Penalty.gnmt,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="How many lines are translated at once.")] = BATCH,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many tokens a line; by default by its length.")
    ] = None,
    repetition_penalty: options.Repetition = 1.0,
    no_repeat_ngram: options.NoRepeat = None,
    min_tokens: options.MinTokens = 0,
    step: Step = None,
    best: Best = False,
    average: Average = 1,
    mesh: Mesh = None,
    layout: Layout = None,
) -> None:
    """Translate standard input line by line with a trained encoder-decoder model."""
    with reported(layout=layout):
        opened = Run(run)
        settings = opened.settings
        if isinstance(settings.model, OwnModel):
            raise _of_own_model(settings.model, run, "translate")
        if not isinstance(settings.model, Seq2SeqConfig):
            raise DecodingError(
                f"the model of {run} is no encoder-decoder, and does not translate",
                fix=f'continue texts with it: `weft generate {run} --prompt "..."`',
            )
        at = checkpoint_of(opened, step, best)
        tokenizer = opened.tokenizer
        on, under = place_for(settings, mesh, layout, is_virtual_too=False)
        model = opened.load(on, under, at, average=average)
        translator = Translator(
            model,
            tokenizer,
            beams=beam,
            alpha=alpha,
            penalty=str(penalty),
            batch=batch,
            tokens=tokens,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram=no_repeat_ngram,
            min_new_tokens=min_tokens,
        )
        _write_translations(translator)


def _write_translations(translator: Translator) -> None:
    """Translates standard input chunk by chunk; Ctrl-C leaves what was written."""
    lines, is_told, began, done = _Lines(), False, time.monotonic(), 0
    size = 1 if _is_typed() else CHUNK * translator.batch
    try:
        # Where translations are read on a terminal, they tell themselves how far it is.
        with Reporter(stderr_console(), is_writer=not sys.stdout.isatty()) as reporter:
            while chunk := list(itertools.islice(lines, size)):
                sys.stdout.buffer.write("".join(line + "\n" for line in translator(chunk)).encode())
                sys.stdout.buffer.flush()
                done += len(chunk)
                if translator.cut and not is_told:
                    is_told = True
                    say(f"warning: lines of more than {translator.longest} tokens are cut there, as in training")
                rate = done / (time.monotonic() - began)
                reporter.progress("translating", done, 0, f"{done:,} lines, {rate:.0f} a second")
    except KeyboardInterrupt as error:
        say(f"stopped after {done:,} lines")
        raise typer.Exit(error.status if isinstance(error, Interrupted) else INTERRUPTED) from None
    if lines.broken is not None:
        say(f"warning: line {lines.broken} is no UTF-8; what cannot be read was taken as \N{REPLACEMENT CHARACTER}")
    cut = f", {translator.cut:,} of them cut" if translator.cut else ""
    say(f"{done:,} lines in {time.monotonic() - began:.1f} s{cut}")


def _is_typed() -> bool:
    """Whether a person types the lines, and waits for each answer."""
    return sys.stdin.isatty()


class _Lines:
    """The lines of standard input without their ends."""

    def __init__(self) -> None:
        self._number = 0
        self.broken: int | None = None
        """The first line that is no UTF-8, if there is one."""

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(iter(sys.stdin.buffer)).rstrip(b"\r\n")
        self._number += 1
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            self.broken = self.broken or self._number
            return line.decode("utf-8", errors="replace")
