"""Proof by compiling: what XLA says of a program on a target one need not own.

The program is lowered here and compiled in a process of its own (`compile_child`), since some failures of these
compilers end the process. The compilers are optional extras of the package.
"""

import dataclasses
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ..compat import expect_no_driver
from ..errors import WeftError
from ..layout import LayoutLike, as_layout
from ..mesh import Mesh, MeshLike, as_mesh
from ..spmd import bind
from ..text import columns, size_text
from .compare_sent import compare_sent
from .sent import Sent
from .targets import Target, read_target

if TYPE_CHECKING:
    from ..program import Program

COMPILERS = {"cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "tpu": ("libtpu",)}
"""The modules that the compiler of a platform may come as."""
_INSTALLS = {
    "cuda": "pip install 'jax[cuda12-local]=={jax}' (weft's extra `cuda`)",
    "tpu": "pip install 'jax[tpu]=={jax}' (weft's extra `tpu`)",
}
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # what is compiled for is not what compiles
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver to ask
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing is run: two may compile at once
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclass(frozen=True)
class Proof:
    """What XLA says of a compiled program: bytes on one processor, collectives."""

    target: str
    argument_bytes: int
    peak_bytes: int
    output_bytes: int
    alias_bytes: int
    """Those of the output that lie where arguments lay."""
    temporary_bytes: int
    collectives: tuple[Sent, ...]
    seconds: float
    """How long compiling took."""

    @property
    def sent_bytes(self) -> dict[str, int]:
        """Bytes of all calls over each group of axes, as a program's ledger counts them."""
        totals: dict[str, int] = {}
        for sent in self.collectives:
            axes = "+".join(sent.axes)
            totals[axes] = totals.get(axes, 0) + sent.bytes * sent.count
        return totals

    def beside(self, program: "Program") -> str:
        """XLA's figures beside those Weft found, and why they differ."""
        kind = read_target(self.target).kind
        memory = program.memory_on(kind)
        low, high = map(size_text, memory.range)
        rows = [
            ("", "Weft", f"XLA for {self.target}"),
            ("arguments", size_text(memory.arguments), size_text(self.argument_bytes)),
            ("peak", f"{size_text(memory.peak)} ({low} to {high})", size_text(self.peak_bytes)),
        ]
        sent, notes = compare_sent(program, self.collectives, kind)
        return "\n".join([*columns(rows + sent), *notes])

    def to_dict(self) -> dict[str, Any]:
        """The proof as plain values."""
        return dataclasses.asdict(self)


def compiled_for(
    fn: Callable[..., Any],
    args: Sequence[Any],
    mesh: MeshLike,
    layout: LayoutLike,
    target: str,
    *,
    timeout: float = 1800,
) -> Proof:
    """What XLA says of `fn(*args)`, compiled for a target like `h100:1x64x8`.

    Arguments may be shapes; a train step may overwrite its state. Nothing of the target needs to be there, only its
    compiler: weft's extras `cuda` and `tpu`.
    """
    expect_no_driver()
    mesh, layout, machine = as_mesh(mesh), as_layout(layout), read_target(target)
    _check_target(machine, mesh)
    bound = bind(fn, mesh, layout)
    shapes, run = bound.flat(*args)
    exported = _export(run, shapes, machine)
    request = {
        "exported": exported,
        "shapes": [(x.shape, x.dtype, x.weak_type, x.sharding.spec) for x in shapes],
        "needed": exported.module_kept_var_idx,  # jit leaves out arguments that nothing needs
        "donated": [i for i, taken in enumerate(bound.inputs(*args)) if taken.is_donated],
        "mesh": str(mesh),
        "target": machine,
    }
    answer = _run_child(pickle.dumps(request), machine, timeout)
    collectives = tuple(Sent(**{**sent, "axes": tuple(sent["axes"])}) for sent in answer.pop("collectives"))
    return Proof(target=target, collectives=collectives, **answer)


def _check_target(machine: Target, mesh: Mesh) -> None:
    if machine.processors != mesh.size:
        raise WeftError(
            f"`{machine.text}` has {machine.processors} processors and the mesh has {mesh.size}",
            state=f"mesh: {mesh}",
            fix="name a machine of the mesh's size, or give the mesh another",
        )
    modules = COMPILERS[machine.platform]
    if not any(importlib.util.find_spec(module) for module in modules):
        raise WeftError(
            f"the compiler for {machine.name} is not installed (`{modules[0]}`)",
            state=f"target: {machine.text}",
            fix=_INSTALLS[machine.platform].format(jax=jax.__version__),
        )


def _export(run: Callable[..., Any], arrays: Sequence[Any], machine: Target) -> Any:
    """The program lowered for the target, as something another process can take up."""
    try:
        # Of float8 operands; its process has the same JAX, so that what it means cannot have changed.
        allowed = [jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
        exported = jax.export.export(jax.jit(run), platforms=[machine.platform], disabled_checks=allowed)(*arrays)
    except (NotImplementedError, ValueError) as error:
        calls_back = any(
            word in str(error) for word in ("callback", "effect", "the platform for the specified backend")
        )
        raise WeftError(
            f"the program cannot be compiled in a process of its own: {_whole(str(error), machine)}",
            fix=_CALLS_BACK if calls_back else _NOT_KNOWN,
        ) from error
    functions: dict[str, Any] = {
        field.name: None for field in dataclasses.fields(exported) if callable(getattr(exported, field.name, None))
    }
    return dataclasses.replace(exported, **functions)  # its gradient is not needed, and cannot be sent


def _run_child(request: bytes, machine: Target, timeout: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "request")
        path.write_bytes(request)
        command = [sys.executable, "-m", "weft.plan.compile_child", str(path)]
        # Where this package lies comes first: the child may start in another folder than the parent did.
        places = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
        environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": places}
        try:
            child = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise WeftError(
                f"compiling for {machine.text} took more than {timeout:g} s",
                fix="give it longer (`timeout=`), or compile a smaller program",
            ) from None
    lines = child.stdout.splitlines()
    if child.returncode == 0 and lines:
        answer = json.loads(lines[-1])
        if "refused" in answer:
            raise _refusal(answer["refused"], answer["during"], machine)
        return answer
    ended = f"was ended by signal {-child.returncode}" if child.returncode < 0 else f"failed ({child.returncode})"
    printed = child.stderr.strip() or "it said nothing"
    raise WeftError(
        f"compiling for {machine.text} {ended}: {_whole(printed, machine, tail=True)}",
        fix=_NOT_KNOWN,
    )


_CALLS_BACK = "leave out what calls back to Python while it runs (`wf.check`, `wf.print`, callbacks)"
_DOES_NOT_FIT = "split what is largest (`program.memory`), or use fewer examples at once"
_NO_SUCH_SHAPE = "compile for another shape of the machine; not every shape exists"
_NOT_KNOWN = "none is known to Weft; what the compiler says stands above, whole or with the file that has all of it"


def _refusal(said: str, during: str, machine: Target) -> WeftError:
    """The error for what XLA refused, with its own message whole."""
    state = f"target: {machine.text}"
    if during == "machine":
        fact = f"XLA knows no machine {machine.text}: {_whole(said, machine)}"
        return WeftError(fact, state=state, fix=_NO_SUCH_SHAPE)
    if "RESOURCE_EXHAUSTED:" in said:
        _, _, why = said.partition("RESOURCE_EXHAUSTED:")
        fact = f"XLA says that the program does not fit: {_whole(why.strip(), machine)}"
        return WeftError(fact, state=state, fix=_DOES_NOT_FIT)
    return WeftError(f"compiling for {machine.text} failed: {_whole(said, machine)}", state=state, fix=_NOT_KNOWN)


_MOST_LINES, _MOST_LETTERS = 40, 4000


def _whole(text: str, machine: Target, *, tail: bool = False) -> str:
    """A compiler's message; of a long one the beginning or end, and a file with all."""
    lines = text.splitlines()
    if len(lines) <= _MOST_LINES and len(text) <= _MOST_LETTERS:
        return text
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"weft-{machine.name}-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write(text)
    kept = lines[-_MOST_LINES // 4 :] if tail else lines[: _MOST_LINES // 4]
    shown = "\n".join(line[: _MOST_LETTERS // 10] for line in kept)
    return f"{shown}\n(all {len(lines)} lines of it: {file.name})"
