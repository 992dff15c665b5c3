"""Nothing takes apart what Weft itself prints."""

import ast

import pytest

from tests.architecture.house import Module, complaints

TAKES_APART = frozenset(
    "split rsplit partition rpartition splitlines startswith endswith removeprefix removesuffix".split()
)
SEARCHES = frozenset("find rfind index rindex strip lstrip rstrip replace".split())
READS_FILES = frozenset("compat errors small_files dtypes primitives kernels interop data".split())  # and the like
# Modules that take texts apart, and whose texts these are: never what we print ourselves.
READS_TEXT = {
    "weft.program.source": "the user's source, and Python's names of files and functions",
    "weft.program.lines": "numbers of layers in names that the user gave",
    "weft.program.listing": "paths of the user's arguments",
    "weft.program.compiled": "scopes and opcodes in programs that XLA compiled",
    "weft.program.profile": "scopes and files in a profile that JAX wrote",
    "weft.program.step_times": "names of devices and streams in a profile that JAX wrote",
    "weft.plan.choices": "rules as a layout has them: `params.d_model`",
    "weft.plan.search": "dims as the user lists them, and messages of the user's errors",
    "weft.plan.compile": "what XLA and JAX print",
    "weft.plan.sent": "XLA's text of a compiled program",
    "weft.plan.targets": "a machine as the user names it",
    "weft.plan.hardware": "a machine as the user names it",
    "weft.plan.hardware_file": "units at the end of keys that the user writes",
    "weft.plan.this_machine": "what the system says of itself, and how far a process of ours is",
    "weft.plan.page": "the page's template",
    "weft.train.stores": "errors of Orbax and TensorStore",
    "weft.train.cloud_store": "errors of TensorStore, and the names of objects",
    "weft.train.processes": "errors of `jax.distributed`",
}


def parsed_texts(module: Module) -> list[str]:
    """Texts that are taken apart in program or plan, where a module does not say whose texts these are.

    Anywhere but where files are read, what `str`, `repr` or an f-string just made of a value.
    """
    fix = "carry a value instead of our own print-out; texts of others: add the module to READS_TEXT with the reason"
    lines = [] if module.room in READS_FILES else print_outs_taken_apart(module)
    if module.room in ("program", "plan") and module.name not in READS_TEXT:
        lines += [imported.line for imported in module.imports if imported.name.split(".")[0] == "re"]
        lines += [getattr(node, "lineno", 0) for node in module.nodes if takes_text_apart(node)]
    return [f"{module.name}:{line} takes a text apart; fix: {fix}" for line in sorted(set(lines))]


def takes_text_apart(node: ast.AST) -> bool:
    """Whether this takes a text apart, or looks for a part of it, whatever text it is."""
    match node:
        case ast.Attribute(value=ast.Name(id="str"), attr=name):  # `map(str.split, lines)`
            return name in TAKES_APART
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in TAKES_APART:
            return not isinstance(owner, ast.Constant)
        case ast.Call(func=ast.Attribute(attr="replace"), args=[ast.Constant(), ast.Constant(value="")]):
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str(part))]) if name in SEARCHES:
            return not part.isidentifier()  # `dims.find("batch")`
        case ast.Compare(left=ast.Constant(value=str()), comparators=[ast.Attribute(attr=name)]):
            return name in ("text", "type") and isinstance(node.ops[0], ast.In | ast.NotIn)
        case ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Slice()):
            return name in ("text", "type")
    return False


def print_outs_taken_apart(module: Module) -> list[int]:
    """Where a module takes apart what it just printed, in an expression or by way of a variable."""
    lines = []
    functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in (*functions, module.tree):
        printed = {
            target.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and is_print_out(node.value) and scope is not module.tree
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[_, *texts]):
                    pass
                case ast.Call(func=ast.Attribute(attr="highlight_regex" | "highlight_words")):  # Rich's, on a print-out
                    texts = [ast.Call(ast.Name("str"), [ast.Name("text")], [])]
                case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in TAKES_APART | SEARCHES - {
                    "replace"
                }:
                    texts = [text]
                case ast.Compare(left=ast.Constant(), ops=[ast.In() | ast.NotIn()], comparators=[text]):
                    texts = [text]
                case _:
                    continue
            if any(is_print_out(text) or (isinstance(text, ast.Name) and text.id in printed) for text in texts):
                lines.append(node.lineno)
    return lines


def is_print_out(node: ast.AST) -> bool:
    """Whether this makes a text of one value, which is no error: `str(x)`, `f"{x}"`, `x.__str__()`."""
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr" | "format"), args=[value, *_]):
            return "error" not in ast.unparse(value)
        case ast.Call(func=ast.Attribute(attr="__str__" | "__repr__")):
            return True
        case ast.JoinedStr(values=[ast.FormattedValue(value=value)]):
            return "error" not in ast.unparse(value)
    return False


def test_every_module_keeps_it():
    assert complaints(parsed_texts) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.plan.page.tensors", "import re", True),
        ("weft.program.diff", "from re import compile", True),
        ("weft.program.memory_names", "dims = called.type.partition('[')[2]", True),
        ("weft.plan.page.sent", "shown = [line for line in lines if not line.startswith('over ')]", True),
        ("weft.plan.page.listing", "first, *rest = map(str.split, lines)", True),
        ("weft.plan.cost", "KINDS = frozenset('product sent moved'.split())", False),
        ("weft.plan.sent", "import re\naxes = text.split(',')", False),
        ("weft.train.config", "key.split('.')", False),
        ("weft.train.config", "first = str(program).splitlines()[0]", True),
        ("weft.train.config", "import re\nsteps = re.search('[0-9]+', repr(line))", True),
        ("weft.cli.show", "at = str(row).find('>>')", True),
        ("weft.cli.terminal", "text.highlight_regex(_SOURCE, 'dim')", True),
        ("weft.cli.terminal", "text.stylize('dim', *line.place)", False),
        ("weft.cli.show", "import re\nis_named = re.search(str(value), fact)", False),
        ("weft.cli.show", "'{}'.format(str(row))", False),
        ("weft.train.stores", "str(error).splitlines()[0]", False),
        ("weft.program.diff", "at = text.find('[')", True),
        ("weft.program.diff", "at = dims.find('batch')", False),
        ("weft.program.diff", "sent = text.replace('>> ', '')", True),
        ("weft.program.diff", "sent = text.lstrip('> ')", True),
        ("weft.program.diff", "line = text.rstrip()", False),
        ("weft.program.memory", "has_memory = 'memory_length' in array.type", True),
        ("weft.program.memory", "number = int(line.text[3:8])", True),
        ("weft.program.lines", "first, second = str(program).split('x')", True),  # though it reads names of layers
        ("weft.plan.page", "rows = f'{ledger}'.splitlines()", True),
        ("weft.cli.show", "def f():\n    text = str(program)\n    return text.splitlines()", True),
        ("weft.cli.show", "is_sent = 'over rows' in str(program)", True),
        ("weft.spmd.step", "rules = str(layout).split(',')", True),
        ("weft.ops.reduce", "name = repr(x).partition('[')[2]", True),
        ("weft.data.remote", "scheme = str(path).partition('://')[0]", False),
    ],
)
def test_a_parsed_print_out_is_caught(name, source, caught):
    assert bool(parsed_texts(Module(name, source))) == caught
