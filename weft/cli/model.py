"""What MODEL on the command line names: a preset, a run's file, or a function.

Every command that reads a program loads it here, so that a model is named in one way.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import jax
import typer

from .. import models
from ..decode.prompts import drop_undivided
from ..errors import LayoutError, WeftError, closest
from ..fields import choices_of
from ..layout import Layout, as_layout
from ..mesh import Mesh, as_mesh
from ..models.decoding import adapt_args
from ..models.running import without_rules
from ..ops import accumulate
from ..program import Program, trace
from ..spmd import bind, is_bound, train_step
from ..text import plural
from ..train.config import AUTO, CONFIG, NOT_PLACED, RunConfig, read
from ..train.optimizers import transformation
from ..train.own.code import UsersError, find_function, import_file, users_code
from ..train.own.model import OwnModel
from ..train.own.trust import Trust
from ..train.runs import no_run_error
from ..train.step import first_model, make_step, shapes_of_call
from ..train.tables import Optimizer
from ..train.wording import reword_size
from .terminal import allow_code
from .trained import complete_run

OPTIMIZERS: tuple[str, ...] = next(
    tuple(map(str, choices_of(field) or ())) for field in fields(Optimizer) if field.name == "name"
)
"""Those of the trainer, by the names that a run's file has for them."""
ADAM = "adam"  # the one of a preset that says none


def complete_model(incomplete: str) -> list[str]:
    """What a shell may complete MODEL to: presets, files of runs, folders of runs."""
    names = [*models.PRESETS, *(str(path) for path in Path(os.path.dirname(incomplete)).glob("*.toml"))]
    return [*(name for name in names if name.startswith(incomplete)), *complete_run(incomplete)]


MODEL = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete_model,
        help="A preset of weft.models, a run's TOML file or folder, or `package.module:function` or"
        " `file.py:function`: a function of no arguments that returns `(fn, args)`.",
    ),
]
MESH = Annotated[str | None, typer.Option(metavar="AXES", help="The mesh, like `rows=2,cols=4`.")]
LAYOUT = Annotated[str | None, typer.Option(metavar="RULES", help="The layout, like `batch:rows`.")]
BATCH = Annotated[int | None, typer.Option(min=1, metavar="N", help="Rows in a batch of a preset or a run.")]
LENGTH = Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens in a row of a preset or a run.")]
OPTIMIZER = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=lambda incomplete: [name for name in OPTIMIZERS if name.startswith(incomplete)],
        help=f"The optimizer of a train step: {', '.join(OPTIMIZERS)}; a run's own, or adam of a preset, if not said.",
    ),
]
CHANGES = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of a run, like model.layers=4.")
]
LOSS = Annotated[bool, typer.Option("--loss", help="The preset's loss alone, not its train step.")]
DECODE = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="CONTEXT",
        help="A step of decoding, not a train step: a token of each of --batch sequences (1 if not said), which looks"
        " at so many tokens in its KV cache. Weights are kept in the dtype they are computed in.",
    ),
]
TRUST = Annotated[bool, typer.Option("--trust", help="Run code of somebody else's, if the run calls any.")]
_STAGES = {"stage": "stages={}"}
_TRAINED = _STAGES | {"batch": "--batch {}"} | dict.fromkeys(("length", "stream", "memory_length"), "--length {}")
_DECODED = _STAGES | {"batch": "--batch {}"}


@dataclass(frozen=True)
class Model:
    """A function to trace and its arguments, under the name the user gave."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: str | None = None
    """The mesh of a run whose layout is still to be found."""
    is_alone: bool = False
    """Whether the function is bound to one processor only until a mesh is named."""
    decoded: int | None = None
    """How many sequences a run decodes: its own rules that these do not divide by are left out."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """What says the size of a dim, by its name: `--batch {}`."""
    change: "Callable[..., Model] | None" = None
    """The same with other options of its configuration: `remat`, `loss_chunks`, `microbatches`."""
    start: Callable[[Mesh, Layout], Any] | None = None
    """The weights that a preset or a run begins with, on a mesh under a layout."""
    vocab: int = 1
    """Below which its tokens are."""
    params: int | None = None
    """How many parameters a preset or a run has."""
    rows: tuple[int, ...] = ()
    """The sizes of a batch that it trains on: rows, and tokens in each."""
    hardware: str | None = None
    """What a run's file says that its plan is for."""

    @property
    def size(self) -> str:
        """Its parameters and its batch as a text; empty of a function."""
        batch = f", batch {' x '.join(map(str, self.rows))}" if self.rows else ""
        return "" if self.params is None else plural(self.params, "parameter") + batch

    @property
    def is_bound(self) -> bool:
        """Whether the function brings its own mesh and layout."""
        return is_bound(self.fn)

    def place(self, mesh: str | None, layout: str | None) -> tuple[Mesh, Layout]:
        """The mesh and layout asked for, or its own; decoding, without prompts' rules."""
        fn: Any = self.fn
        mesh = mesh or self.mesh
        on = as_mesh(fn.mesh if mesh is None and self.is_bound else mesh)
        under = as_layout(fn.layout if layout is None and self.is_bound else layout)
        if layout is None and self.decoded is not None:
            under = without_rules(under, "beam", "samples", "length", "stream")  # of a prompt, the last two
            under = drop_undivided(under, on, {"batch": self.decoded})
        return on, under

    def traced(self, *, mesh: str | None = None, layout: str | None = None) -> Program:
        """The program on a mesh under a layout; what is left out is the function's own."""
        fn: Any = self.fn
        mesh = mesh or self.mesh
        on, under = self.place(mesh, layout)
        with users_code(f"`{self.name}` failed while it was traced", f"layout: {under}   mesh: {on}"):
            bound: dict[str, Any] = (
                {} if mesh is None and layout is None and not self.decoded else dict(mesh=on, layout=under)
            )
            try:
                program = trace(fn, *adapt_args(self.args, under), **bound)
            except LayoutError as error:
                if is_function(self.name):
                    raise
                fix = reword_size(error.fix, self.sizes)
                raise LayoutError(error.fact, state=error.given_state, fix=fix) from None
        if not is_function(self.name):
            program.name = f"{self.name} {program.name}"
        return program


def load(
    name: str,
    *,
    batch: int | None,
    length: int | None,
    optimizer: str | None,
    loss: bool,
    decode: int | None = None,
    changes: Sequence[str] | None = None,
    trust: bool = False,
    mesh: str | None = None,
    layout: str | None = None,
) -> Model:
    """What MODEL names, with its sizes, its optimizer, its loss alone or decoding.

    A run's file is read as if it said this mesh and layout, where they are given.
    """
    name, changes = find_run(name), list(changes or ())
    if optimizer is not None and optimizer not in OPTIMIZERS:
        fix = closest(optimizer, OPTIMIZERS)
        raise typer.BadParameter(f"there is no optimizer `{optimizer}`: {fix}", param_hint="--optimizer")
    if changes and not is_run(name):
        raise typer.BadParameter("is for runs, by their file or folder", param_hint="--set")
    chosen = decode is not None and "--decode"
    check_only_one(chosen, loss and "--loss", optimizer is not None and "--optimizer")
    if decode is not None:
        is_placed = mesh is not None and layout is not None
        place = dict.fromkeys(("mesh", "layout"), AUTO) if is_placed else {}  # where it trains is another matter
        return load_decoding(
            name, decode, batch=batch, length=length, changes=changes, trust=allow_code(trust), place=place
        )
    sizes = {word: size for word, size in (("batch", batch), ("length", length)) if size is not None}
    if is_run(name):
        if loss:
            raise typer.BadParameter("is for presets; a run is read as it trains", param_hint="--loss")
        changes += [f"train.{word}={size}" for word, size in sizes.items()]
        changes += [f"optimizer.name={optimizer}"] if optimizer else []
        place = {key: said for key, said in (("mesh", mesh), ("layout", layout)) if said is not None}
        return load_run(name, changes, allow_code(trust), place)
    if is_function(name):
        for option in (*sizes, loss and "loss", optimizer is not None and "optimizer"):
            if isinstance(option, str):
                what = "is for presets and runs; your function says it itself"
                raise typer.BadParameter(what, param_hint=f"--{option}")
        return load_function(name)
    return load_preset(name, optimizer=None if loss else optimizer or ADAM, **sizes)


def find_run(name: str) -> str:
    """The file of a run where MODEL names its folder; any other MODEL as it is."""
    if is_function(name) or name in models.PRESETS or not Path(name).is_dir():
        return name
    file = Path(name) / CONFIG
    if not file.is_file():
        raise no_run_error(Path(name))
    return str(file)


def check_only_one(*options: str | bool) -> None:
    """Refuses options that exclude one another."""
    names = [name for name in options if isinstance(name, str)]
    if len(names) > 1:
        raise typer.BadParameter(f"not together with {names[0]}; say one of them", param_hint=names[1])


def need_mesh_and_layout(model: Model, mesh: str | None, layout: str | None) -> None:
    """Refuses a command without mesh or layout, unless the function brings its own."""
    if model.is_bound and not (model.is_alone and (mesh is not None or layout is not None)):
        return
    if mesh is not None:
        as_mesh(mesh)  # a mesh that cannot be read is said first
    elif model.mesh is None:
        raise typer.BadParameter(
            "say the axes of the mesh and their sizes: `--mesh rows=2,cols=4`", param_hint="--mesh"
        )
    if layout is None:
        what = "the file says auto: say one, or find one with `weft search`" if is_run(model.name) else ""
        what = what or "say which dims are split: `--layout batch:rows` (`''`: none)"
        raise typer.BadParameter(what, param_hint="--layout")


def is_function(name: str) -> bool:
    """Whether MODEL is written `module:function` or `file.py:function`."""
    return ":" in name


def is_run(name: str) -> bool:
    """Whether MODEL is the file of a run."""
    return name.endswith(".toml")


def load_run(
    name: str, changes: Sequence[str] = (), trust: Trust = False, place: Mapping[str, str] = NOT_PLACED
) -> Model:
    """The train step of a run, with its own mesh and layout unless they are `auto`."""
    return _model_of_run(name, read(Path(name), changes, trust=trust, place=place))


def _model_of_run(name: str, config: RunConfig) -> Model:
    step = make_step(config, *(() if config.is_open else config.runs_on))
    mesh = config.mesh if config.is_open and config.mesh != AUTO else None

    def change(**options: Any) -> Model:
        of_train = {"microbatches": options.pop("microbatches")} if "microbatches" in options else {}
        assert not isinstance(config.model, OwnModel)
        model, train = replace(config.model, **options), replace(config.train, **of_train)
        return _model_of_run(name, replace(config, model=model, train=train))

    values: dict[str, Any] = dict(start=functools.partial(first_model, config), params=config.model.param_count)
    values |= dict(rows=(config.batch,) if config.own_data else (config.batch, config.length), hardware=config.hardware)
    if isinstance(config.model, OwnModel):
        return Model(name, step, shapes_of_call(config, step), mesh, **values)
    values["vocab"] = config.model.vocab
    return Model(name, step, shapes_of_call(config, step), mesh, sizes=_STAGES, change=change, **values)


def load_preset(name: str, *, optimizer: str | None, microbatches: int = 1, **sizes: Any) -> Model:
    """The train step of a preset with one of the optimizers, or its loss alone."""
    config = find_preset(name, **sizes)
    batch, key = config.batch_shapes(), jax.eval_shape(lambda: jax.random.key(0))

    def loss(model: Any, batch: Any, key: Any) -> Any:
        if microbatches == 1:
            return model.loss(batch, key)

        def part(model: Any, rows: Any) -> Any:
            value, metrics = model.loss_and_metrics(rows, key)
            return value * metrics["tokens"], metrics["tokens"]

        return accumulate(part, model, batch, over="batch", count=microbatches)

    def change(**options: Any) -> Model:
        return load_preset(name, **{"optimizer": optimizer, "microbatches": microbatches, **sizes, **options})

    rows = max((tensor.dims.sizes for tensor in batch.values()), key=len)
    more: dict[str, Any] = dict(sizes=_TRAINED, change=change, rows=rows, **_values(config))
    if optimizer is None:
        return Model(name, loss, (models.shapes(config), batch, key), **more)
    # The rate is a number in the program, nothing more.
    step = train_step(loss, transformation(Optimizer(name=optimizer), config, 1e-3))
    return Model(name, step, (step.init(models.shapes(config)), batch, key), **more)


def _values(config: models.ModelConfig) -> dict[str, Any]:
    """What makes the first weights of a model, and below which number tokens are."""

    def start(mesh: Mesh, layout: Layout) -> Any:
        return models.init(config, jax.random.key(0), mesh, layout)

    return {"start": start, "vocab": getattr(config, "vocab", 1), "params": config.param_count}


def load_decoding(
    name: str,
    context: int,
    *,
    batch: int | None,
    length: int | None,
    changes: Sequence[str] = (),
    trust: Trust = False,
    place: Mapping[str, str] = NOT_PLACED,
) -> Model:
    """A step of decoding of a preset, on one processor, or of a run, on its own."""
    if is_function(name):
        raise typer.BadParameter("is for presets and runs; your function says what it does", param_hint="--decode")
    run = read(Path(name), changes, trust=trust, place=place) if is_run(name) else None
    config = find_preset(name) if run is None else run.model
    if isinstance(config, OwnModel):
        raise typer.BadParameter("is for models of the library; yours says itself what it does", param_hint="--decode")
    if length is not None and (run is not None or not isinstance(config, models.Seq2SeqConfig)):
        what = "your file says it itself" if run is not None else "how much a token looks at is what --decode says"
        raise typer.BadParameter(f"is for presets of encoder-decoders here; {what}", param_hint="--length")
    if isinstance(config, models.TransformerConfig):
        config = replace(config, param_dtype=config.dtype, length=length or config.length)
    fn, args = models.decode_step(config, context, batch or 1)
    # What an encoder-decoder model looks at has two sizes: its own context and what its encoder read.
    sizes = _DECODED | ({} if isinstance(config, models.Seq2SeqConfig) else {"memory_length": "--decode {}"})
    more: dict[str, Any] = dict(sizes=sizes, hardware=None if run is None else run.hardware, **_values(config))
    if run is not None and not run.is_open:
        return Model(name, bind(fn, *run.runs_on), args, decoded=batch or 1, **more)
    return Model(name, fn, args, is_alone=True, **more)


def find_preset(name: str, **sizes: int) -> models.ModelConfig:
    """The configuration of a preset by its name on the command line."""
    if name not in models.PRESETS:
        what = "or name a file of a run, or a function of yours: `path/to/file.py:function`"
        raise WeftError(f"there is no preset `{name}`", fix=f"{closest(name, models.PRESETS)} {what}")
    return models.preset(name, **sizes)


def load_function(name: str) -> Model:
    """What `package.module:function` or `file.py:function` returns when called."""
    return Model(name, *load_maker(name)())


def load_maker(name: str, values: Sequence[str] = ()) -> Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The function that MODEL names, to be called with values of these names."""
    place, _, wanted = name.rpartition(":")
    if not place or not wanted:
        raise WeftError(
            f"`{name}` names no {'function' if place else 'module'}",
            fix="write it like `package.module:function` or `path/to/file.py:function`",
        )
    is_file = place.endswith(".py") or os.sep in place
    looked = f"model: {name}   looked in {os.getcwd()}"
    module = import_file(Path(place), place, state=looked) if is_file else _import_module(place, name)
    make = _find_function(module, wanted, name, values)

    def call(**values: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        with users_code(f"`{name}` failed while it was called"):
            return _check_returned(make(**values), name)

    return call


def _import_module(place: str, name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with users_code(f"`{place}` failed while it was imported"):
            return importlib.import_module(place)
    except UsersError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or not f"{place}.".startswith(f"{cause.name}."):
            raise
    if place.endswith(".toml"):
        raise WeftError(f"`{name}` names a function in a TOML file", fix=f"give the file alone: `{place}`")
    here = [path.stem for path in Path().glob("*.py")] + [path.parent.name for path in Path().glob("*/__init__.py")]
    raise WeftError(
        f"there is no module `{place}`",
        state=f"model: {name}   looked in {os.getcwd()} and among the installed packages",
        fix=f"{closest(place, here) + ' or ' if here else ''}give a file: `path/to/file.py:function`",
    )


def _find_function(module: ModuleType, wanted: str, name: str, values: Sequence[str] = ()) -> Callable[..., Any]:
    function = find_function(module, wanted, state=f"model: {name}")
    if needed := [each for each in _arguments_needed(function) if each not in values]:
        raise WeftError(
            f"`{wanted}` in `{module.__name__}` needs arguments ({', '.join(needed)}); it is called with none",
            state=f"model: {name}",
            fix=f"write a function of no arguments that returns `({wanted}, ({', '.join(needed)},))`",
        )
    return function


def _arguments_needed(fn: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # not every callable tells
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in optional]


def _check_returned(returned: Any, name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        length = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        fact = f"`{name}` returned a {type(returned).__name__}{length}, not `(fn, args)`"
    elif not callable(returned[0]):
        fact = f"`{name}` returned `(fn, args)` with a {type(returned[0]).__name__} for fn"
    elif not isinstance(returned[1], tuple):
        fact = f"`{name}` returned `(fn, args)` with a {type(returned[1]).__name__} for args"
    else:
        return returned
    fix = "return the function to trace and a tuple of its arguments: `return fn, (x, w)`"
    raise WeftError(fact, state=f"model: {name}", fix=fix)
