"""One program and its layouts, of whichever kind, as the workers run them: what came of each pair."""

import collections
import random
import re
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

import weft as wf
from tests.lower.on_all import in_steps
from tests.properties import agreement, programs
from tests.properties import layouts as form_layouts
from tests.properties.written import judging, training
from tests.properties.written.drawing import RawError
from tests.properties.written.families import draw_written
from tests.properties.written.layouts import MESHES, draw_layout, kind_of_layout, wrong_in
from tests.properties.written.ledgers import ledger_differences
from tests.properties.written.program import reproduction
from tests.properties.written.shrinking import shrunk, under_layout

BAD = ("wrong", "raw", "refused wrongly", "hung", "aborted")


# How often a worker has met each kind of finding: the first of them are made smaller.
seen: collections.Counter[str] = collections.Counter()


@dataclass
class Outcome:
    """What came of a program on one layout; `about` groups what may have one cause."""

    outcome: str
    about: str = ""
    detail: str = ""
    text: str = ""
    mesh: str = ""
    layout: str = ""
    family: str = ""
    words: list[tuple[str, str]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class WrittenCase:
    """A program as text, compared with plain jnp and then with itself with no mesh."""

    def __init__(self, rng: random.Random, family: str):
        self.family, self.program = family, draw_written(rng, family)
        self.words = sorted(self.program.words)
        self.reads_ledgers = rng.random() < 0.1

    def text(self, mesh: str, layout: str) -> str:
        return reproduction(self.program, mesh, layout)

    def layout(self, rng: random.Random, mesh: str) -> str:
        return draw_layout(rng, self.program, mesh)

    def alone(self) -> list[tuple[str, str]]:
        """With no mesh against plain jnp: what differs."""
        self.here, self.plainly = judging.on_one_processor(self.program)
        return judging.differences(self.program, self.here, self.plainly)

    def is_near(self) -> bool:
        return judging.is_too_near(self.program, self.plainly)

    def under(self, mesh: str, layout: str) -> list[tuple[str, str]]:
        """On a layout against no mesh: what differs; and now and then, what its ledger does not say."""
        found = under_layout(self.program, self.here, mesh, layout)
        return found or (ledger_differences(self.program, mesh, layout) if self.reads_ledgers else [])

    def wrong_in(self, error: wf.WeftError, mesh: str, layout: str) -> str:
        return wrong_in(error, self.program, mesh, layout)

    def smaller(self, mesh: str, layout: str, about: str) -> str:
        """The shortest part that fails by itself, printed."""
        seen[about] += 1
        if seen[about] > 2:
            return self.text(mesh, layout)
        return reproduction(*shrunk(self.program, mesh, layout))


class FormCase:
    """A program of the drawn forms, which have a plain form each."""

    family = "forms"

    def __init__(self, rng: random.Random, family: str):
        self.program = programs.draw_program(rng)
        self.words = sorted({(word, "float32") for word in self.program.words})

    def text(self, mesh: str, layout: str) -> str:
        return f"mesh {mesh}  layout {layout}\n{self.program.show()}"

    def layout(self, rng: random.Random, mesh: str) -> str:
        return form_layouts.draw_layout(rng, self.program, mesh)

    def alone(self) -> list[tuple[str, str]]:
        self.here, plainly, self.near = agreement.on_one_processor(self.program)
        return self._compared(self.here, plainly)

    def is_near(self) -> bool:
        return self.near < agreement.tolerance(self.program) / 8

    def under(self, mesh: str, layout: str) -> list[tuple[str, str]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wf.WeftWarning)
            run = wf.spmd(programs.differentiated(self.program), mesh=mesh, layout=layout)
            return self._compared(agreement.arrays(run(self.program.inputs)), self.here)

    def _compared(self, got: Any, wanted: Any) -> list[tuple[str, str]]:
        try:
            agreement.all_close(self.program, got, wanted)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return [(lines[1] if len(lines) > 1 else lines[0], "\n".join(lines))]
        return []

    def wrong_in(self, error: wf.WeftError, mesh: str, layout: str) -> str:
        return form_layouts.wrong_in(error, self.program, mesh, layout)

    def smaller(self, mesh: str, layout: str, about: str) -> str:
        return self.text(mesh, layout)


def make_case(seed: int, index: int, family: str) -> Any:
    rng = random.Random(f"{seed}/{index}")
    kinds = {"forms": FormCase, "train": training.TrainCase}
    return kinds.get(family, WrittenCase)(rng, family), rng


def run_case(seed: int, index: int, family: str, *, layouts: int, skip: int, tell: Any) -> Iterator[Outcome]:
    """The outcomes of a program's pairs; `tell` hears what is about to run, should it never come back."""
    try:
        case, rng = make_case(seed, index, family)
    except RawError as error:
        yield Outcome("raw", f"on whole tensors: {first_line(error)}", str(error), str(error), family=family)
        return
    if skip:
        case_alone_failed = case.alone()
    else:
        tell(Outcome("", text=case.text("x=1", ""), family=family, words=case.words).as_dict())
        outcome, case_alone_failed = run_alone(case, family)
        yield outcome
    if case_alone_failed:
        return
    for number, (mesh, layout) in enumerate(draw_layouts(case, rng, layouts), 1):
        if number < skip:
            continue
        known = dict(mesh=mesh, layout=layout, family=family, words=case.words, kinds=kind_of_layout(mesh, layout))
        tell(Outcome("", text=case.text(mesh, layout), **known).as_dict())
        outcome = run_pair(case, mesh, layout)
        for key, value in known.items():
            setattr(outcome, key, value)
        yield outcome


def draw_layouts(case: Any, rng: random.Random, count: int) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for _ in range(3 * count):
        mesh = rng.choice(MESHES)
        if layout := case.layout(rng, mesh):
            found[mesh, layout] = None
        if len(found) == count:
            break
    return list(found)


def run_alone(case: Any, family: str) -> tuple[Outcome, bool]:
    """With no mesh against plain jnp."""
    known = dict(family=family, words=case.words, kinds=["no mesh"])
    try:
        found = case.alone()
    except wf.WeftError as error:
        return Outcome(
            "refused wrongly", f"with no mesh: {error.fact}", str(error), case.text("x=1", ""), **known
        ), True
    except Exception as error:
        about = f"with no mesh: {type(error).__name__}: {first_line(error)}"
        return Outcome("raw", about, detail_of(error), case.text("x=1", ""), **known), True
    if not found:
        return Outcome("equal", **known), False
    if case.is_near():
        return Outcome("too near to tell", **known), True
    about = f"with no mesh: {about_of(case, found)}"
    return Outcome("wrong", about, told(found), case.smaller("x=1", "", about), **known), True


def run_pair(case: Any, mesh: str, layout: str) -> Outcome:
    try:
        with in_steps():
            found = case.under(mesh, layout)
    except wf.WeftError as error:
        if not (wrong := case.wrong_in(error, mesh, layout)):
            return Outcome("refused", error.fact.split("`")[0].strip())
        about = general(error.fact)
        return Outcome("refused wrongly", about, f"{wrong}: {error}", case.smaller(mesh, layout, about))
    except Exception as error:
        about = f"{type(error).__name__}: {general(first_line(error))}"
        return Outcome("raw", about, detail_of(error), case.smaller(mesh, layout, about))
    if not found:
        return Outcome("equal")
    if case.is_near():
        return Outcome("too near to tell")
    about = about_of(case, found)
    return Outcome("wrong", about, told(found), case.smaller(mesh, layout, about))


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:160] if lines else ""


def general(fact: str) -> str:
    """A fact without its names and sizes."""
    return re.sub(r"\d+", "N", re.sub(r"\[[^\]]*\]", "[.]", re.sub(r"`[^`]*`", "`.`", fact)))


def detail_of(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-1500:]


def about_of(case: Any, found: list[tuple[str, str]]) -> str:
    """Which operation the first difference is of, and whether it is a value or a gradient."""
    name = found[0][0]
    statements = getattr(case.program, "statements", [])
    word = next((s.word for s in statements if name in s.makes), "")
    if word:
        return f"value of {word}"
    words = sorted({s.word for s in statements}) or [name]
    return f"gradient through {', '.join(words)}" if name.startswith("gradient") else f"{name}"


def told(found: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name}: {how}" for name, how in found[:4])


def clear() -> None:
    jax.clear_caches()
