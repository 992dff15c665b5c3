"""Only weft/compat.py touches what JAX keeps private, with the reason beside each."""

import ast
import io
import re
import tokenize

import pytest

from tests.architecture.house import Module, complaints, strings

PRIVATE_JAX = "jax._src"
# Names of JAX's that stand in no documentation, reached on values and not by import.
UNPROMISED = frozenset(
    "_src _trace _check_vma dce_jaxpr name_stack source_info manual_axis_type vma func_src_info summarize".split()
)
UNPROMISED_MODULES = re.compile(
    r"jaxlib\b|jax\.interpreters\.(partial_eval|pxla|xla)\b|inspect\.(stack|currentframe)\b"
)
# Classes of tracers, files of JAX's own, and what its transformations write into scopes.
UNPROMISED_TEXT = re.compile(
    r"(\w*Tracer)|.*(jax[./]_src|(?<![\w.])(transpose|jvp|vmap)\(|rematted_computation).*", re.DOTALL
)
# Rooms that meet no errors of libraries but JAX's, whose words no release need keep.
IN_JAX_ALONE = frozenset("tensor lower ops spmd program nn models decode kernels".split())


def private_jax(module: Module) -> list[str]:
    """Uses of what JAX does not promise outside weft/compat.py, or of `jax._src` inside it without its reason."""
    if module.name != "weft.compat":
        return [
            f"{module.name}:{line} uses {what}, which JAX does not promise; only weft/compat.py may"
            for line, what in sorted(couplings_to_jax(module))
        ]
    reasons = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:)", token.string):
            reasons.add(token.start[0])
    return [
        f"{module.name}:{line} uses {name} without a comment on that line saying why"
        for line, name in module.mentions
        if f"{name}.".startswith(f"{PRIVATE_JAX}.") and line not in reasons
    ]


def couplings_to_jax(module: Module) -> set[tuple[int, str]]:
    """Where a module depends on what JAX does not promise: by import, by attribute, by a class's or function's name."""
    is_private = re.compile(rf"jax\.([\w.]*\.)?_(?!_)|{UNPROMISED_MODULES.pattern}")
    found = {(line, name) for line, name in module.mentions if is_private.match(name)}
    found |= {(node.lineno, repr(node.value)) for node in strings(module) if UNPROMISED_TEXT.fullmatch(node.value)}
    # A frame's name may be shown, and nothing else be done with it.
    shown = {id(inner) for text in module.nodes if isinstance(text, ast.JoinedStr) for inner in ast.walk(text)}
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name) if name in UNPROMISED:
                found.add((node.lineno, f"`.{name}`"))
            case ast.Constant(value=str(text)) if text in UNPROMISED:
                found.add((node.lineno, repr(text)))
            case ast.Attribute(attr="co_name") if id(node) not in shown:
                found.add((node.lineno, f"a frame's name: {ast.unparse(node)}"))
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]) if module.room in IN_JAX_ALONE:
                if re.fullmatch(r"(str|repr)\(\w*error\w*\)", ast.unparse(text)):
                    found.add((node.lineno, f"the words of an error: {ast.unparse(node)}"))
    return found


def test_every_module_keeps_it():
    assert complaints(private_jax) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.compat", "from jax._src.core import Trace  # no public name for it", False),
        (
            "weft.compat",
            "from jax._src.core import (\n    Trace,  # no public name for it\n    Tracer,\n)",
            True,
        ),
        ("weft.compat", "from jax._src.core import Trace", True),
        ("weft.compat", "from jax._src.core import Trace  # noqa: F401", True),
        ("weft.compat", "import jax\ntrace = jax._src.core.Trace", True),
        ("weft.tensor", "from jax._src.core import Trace  # no public name for it", True),
        ("weft.tensor", "from jax import _src", True),
        ("weft.tensor", "import jax._src.core as core", True),
        ("weft.tensor", "import jax.extend.core\nfrom jax import numpy as jnp", False),
        ("weft.tensor", "import importlib\nimportlib.import_module('jax._src.core')", True),
        ("weft.tensor", "import jax\ncore = getattr(jax, '_src').core", True),
        ("weft.tensor", "import jax\nfrom jax import numpy as jnp\nx = jnp._private(y)", True),
        ("weft.tensor", "import sys\nif sys._getframe(1).f_code.co_name == 'grad':\n    pass", True),
        ("weft.tensor", "import sys\nx = sys._getframe(1).f_code.co_name.startswith('_operator_')", True),
        ("weft.errors", "text = f'in {frame.f_code.co_name}'", False),
        ("weft.ops.custom", "x = type(array).__name__ in ('JVPTracer',)", True),
        ("weft.ops.custom", "x = isinstance(array, jax.core.Tracer)", False),
        ("weft.lower.collectives", "x = array._trace", True),
        ("weft.lower.collectives", "x = getattr(array, '_trace', None)", True),
        ("weft.spmd.border", "from jax.interpreters import partial_eval\nx = partial_eval.dce_jaxpr(y)", True),
        ("weft.program.graph", "x = str(eqn.source_info.name_stack)", True),
        ("weft.ops.control", "x = aval.manual_axis_type.varying", True),
        ("weft.compat", "x = aval.manual_axis_type.varying", False),
        ("weft.ops.custom", "name = sys._getframe(1).f_code.co_name\nif name == 'grad': pass", True),
        ("weft.ops.custom", "code = frame.f_code\nif code.co_name in NAMES: pass", True),
        ("weft.ops.custom", "import inspect\nif inspect.stack()[1].function == '_check_scalar': pass", True),
        ("weft.ops.custom", "if frame.f_code.co_filename.endswith('jax/_src/api.py'): pass", True),
        ("weft.ops.custom", "x = 'Tracer' in type(array).__name__", True),
        ("weft.ops.custom", "from jax.interpreters import partial_eval as pe\npe.trace_to_jaxpr_dynamic(f)", True),
        ("weft.ops.custom", "from jax.interpreters import batching, mlir", False),
        ("weft.ops.custom", "from jaxlib import xla_client", True),
        ("weft.spmd.step", "line = eqn.source_info.traceback", True),
        ("weft.program.ledger", "is_backward = 'transpose(' in scopes", True),
        ("weft.ops.conv", "fix = 'map over it: `wf.vmap(fn)`'", False),
        ("weft.spmd.running", "if 'deleted or donated' not in str(error): raise", True),
        ("weft.data.files", "if 'CRC' in str(error): raise", False),
    ],
)
def test_private_jax_is_caught(name, source, caught):
    assert bool(private_jax(Module(name, source))) == caught
