"""Only weft/compat.py touches what JAX keeps private, with the reason beside each."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.architecture.house import complaints
from tests.architecture.source import Module
from tests.architecture.texts import is_error, texts_searched, texts_taken_apart, values_printed

PRIVATE_JAX = "jax._src"
# Names of JAX's that stand in no documentation, reached on values and not by import.
UNPROMISED = frozenset(
    "_src _trace _check_vma dce_jaxpr name_stack source_info manual_axis_type vma func_src_info summarize".split()
)
UNPROMISED_MODULES = re.compile(
    r"jaxlib\b|jax\.interpreters\.(partial_eval|pxla|xla)\b|jax\.lib\b|jax\.__(file|path|version_info)__|"
    r"jax\.__version__\.|jax\.([\w.]*\.)?__dict__|inspect\.(stack|currentframe|trace|get(outer|inner)frames)\b"
)
# Classes of tracers, files of JAX's own, and what its transformations write into scopes.
UNPROMISED_TEXT = re.compile(
    r"(\w*Tracer)|.*(jax[./]_src|(?<![\w.])(transpose|jvp|vmap)\\?\(|rematted_computation).*", re.DOTALL
)
# Rooms that meet no errors, classes and callers of libraries but JAX's, whose names and words no release need keep.
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
    """Where a module depends on what JAX does not promise: its private names, its frames, how one release differs."""
    is_private = re.compile(rf"jax\.([\w.]*\.)?_(?!_)|{UNPROMISED_MODULES.pattern}")
    found = {(line, name) for line, name in module.mentions if is_private.match(name)}
    found |= {(reach.line, f"`{reach.name}`") for reach in module.reached if reach.name in UNPROMISED}
    for text in module.strings:
        if UNPROMISED_TEXT.fullmatch(text.value) or text.value in UNPROMISED:
            found.add((text.lineno, repr(text.value)))
    # A frame's name may be shown, and nothing else be done with it.
    shown = {id(inner) for text in module.nodes if isinstance(text, ast.JoinedStr) for inner in ast.walk(text)}
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "co_name" and id(node) not in shown:
            found.add((node.lineno, f"a frame's name: {ast.unparse(node)}"))
        if asks_for_release(module, node):
            found.add((node.lineno, f"what some releases have: {ast.unparse(node).splitlines()[0]}"))
        if module.room in IN_JAX_ALONE:
            found |= {(node.lineno, f"{what}: {ast.unparse(node)}") for what in words_of_jax(module, node)}
    return found


def asks_for_release(module: Module, node: ast.AST) -> bool:
    """Whether code goes by the release of JAX: by its number, or by what stands in its modules."""
    match node:
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr" | "vars" | "dir"), args=[of, *_]):
            return (module.full_name(of) or "").split(".")[0] == "jax"
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
            return any(module.full_name(inner) == "jax.__version__" for inner in ast.walk(node))
        case ast.Try(body=[ast.Import() | ast.ImportFrom() as imported, *_], handlers=handlers):
            of_jax = re.search(r"\bjax\b", ast.unparse(imported))
            return bool(of_jax) and any("Error" in ast.unparse(handler) for handler in handlers)
    return False


def words_of_jax(module: Module, node: ast.AST) -> Iterator[str]:
    """What code goes by where all it meets is JAX's: an error's words, a class's name, a caller."""
    for text in texts_searched(module, node):
        if any(is_error(module, value) for value in (*values_printed(module, text), *args_of_error(module, text))):
            yield "the words of an error"
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    for text in (*texts_taken_apart(module, node), *sides):
        if module.says(r"^(type\(.*\)|.*\.__class__)\.__(name|qualname|module)__$", text):
            yield "a class by its name"
    match node:
        case (
            ast.Compare(comparators=[ast.Constant(value=str(text))])
            | ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=[ast.Constant(value=str(text))])
        ) if re.match(r"jax(lib)?[./]", text):
            yield "a module of JAX's by its name"
        case ast.Call(func=ast.Attribute(attr="filterwarnings"), keywords=words, args=args):
            if len(args) > 1 or any(word.arg == "message" for word in words):
                yield "the words of a warning"
        case ast.Attribute() if re.match(r"traceback\.(extract|walk)_stack$", module.full_name(node) or ""):
            yield "callers"


def args_of_error(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    """The errors whose first argument this is: `error.args[0]`."""
    for origin in module.origins(node):
        match origin:
            case ast.Subscript(value=ast.Attribute(value=error, attr="args")) | ast.Attribute(value=error, attr="args"):
                yield error


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
        ("weft.spmd.step", "import jax\nif jax.__version_info__ >= (0, 11): pass", True),
        ("weft.spmd.step", "import jax\nif jax.__version__.startswith('0.10'): pass", True),
        (
            "weft.spmd.step",
            "try:\n    from jax import shard_map\nexcept ImportError:\n    from .old import shard_map",
            True,
        ),
        ("weft.spmd.step", "if type(x).__name__ == 'ArrayImpl': pass", True),
        ("weft.spmd.step", "if 'JVP' in type(x).__name__: pass", True),
        ("weft.spmd.step", "if type(x).__module__.startswith('jax'): pass", True),
        (
            "weft.spmd.running",
            "try: f()\nexcept ValueError as err:\n    message = str(err)\n    if 'donated' in message: raise",
            True,
        ),
        (
            "weft.spmd.running",
            "def f(error):\n    message = str(error)\n    if message.startswith('RESOURCE_EXHAUSTED'): pass",
            True,
        ),
        ("weft.spmd.running", "def f(error):\n    if error.args[0].startswith('Incompatible shapes'): pass", True),
        ("weft.spmd.running", "def f(error):\n    if re.search('deleted or donated', str(error)): pass", True),
        ("weft.spmd.running", "def f(error):\n    if 'donated' in f'{error}': pass", True),
        (
            "weft.spmd.running",
            "import warnings\nwarnings.filterwarnings('ignore', message='Some donated buffers were not usable')",
            True,
        ),
        ("weft.spmd.running", "import sys\nif sys._getframe(1).f_globals['__name__'].startswith('jax.'): pass", True),
        ("weft.spmd.running", "import traceback\nif traceback.extract_stack()[-3].name == 'grad': pass", True),
        ("weft.spmd.running", "import inspect\nfor info in inspect.getouterframes(frame): pass", True),
        ("weft.spmd.running", "import os, jax\nfolder = os.path.dirname(jax.__file__)", True),
        ("weft.spmd.running", "from jax.lib import xla_client", True),
        ("weft.spmd.running", "import jax\nx = jax.lib.xla_bridge.get_backend()", True),
        ("weft.spmd.running", "is_back = re.search(r'transpose\\(', scopes)", True),
        ("weft.ops.reduce", "from jax import lax\ngather = getattr(lax, 'all_gather')", True),
        ("weft.ops.reduce", "from jax import lax\nfn = getattr(lax, f'p{kind}')", True),
        ("weft.ops.reduce", "from jax import lax\nfn = getattr(lax, name)", True),
        ("weft.ops.reduce", "import jax\nx = vars(jax.lax)['all_gather']", True),
        ("weft.ops.reduce", "import jax\nx = jax.lax.__dict__['all_gather']", True),
        ("weft.spmd.running", "import jax\nIS_NEW = jax.__version_info__[:2] > (0, 10)", True),
        (
            "weft.spmd.running",
            "import jax\nfrom packaging.version import Version\nIS_NEW = Version(jax.__version__) >= Version('0.11')",
            True,
        ),
        ("weft.spmd.running", "import jax\nIS_NEW = tuple(map(int, jax.__version__.split('.'))) >= (0, 11)", True),
        (
            "weft.spmd.running",
            "try:\n    from jax.sharding import AxisType\nexcept ImportError:\n    AxisType = None",
            True,
        ),
        (
            "weft.spmd.running",
            "try: f()\nexcept E as failure:\n    text = str(failure).lower()\n    if 'out of memory' in text: raise",
            True,
        ),
        (
            "weft.spmd.running",
            "try:\n    step()\nexcept TypeError as error:\n    if not str(error).startswith('Argument'): raise",
            True,
        ),
        (
            "weft.spmd.running",
            "try: f()\nexcept E as error:\n    first = str(error).splitlines()[0]\n    if 'abstract' in first: raise",
            True,
        ),
        ("weft.nn.weights", "def f(x):\n    name = type(x).__name__\n    return name.startswith('Dynamic')", True),
        ("weft.nn.weights", "def f(x):\n    return 'Array' in type(x).__qualname__", True),
        ("weft.nn.weights", "def f(x):\n    return x.__class__.__module__ == 'jaxlib._jax'", True),
        ("weft.errors", "import os, jax\nJAX = os.path.dirname(jax.__file__)", True),
        ("weft.train.compilation", "from jax.lib import xla_bridge", True),
    ],
)
def test_private_jax_is_caught(name, source, caught):
    assert bool(private_jax(Module(name, source))) == caught
