"""Nothing takes apart what Weft itself prints."""

import ast

import pytest

from tests.architecture.house import complaints
from tests.architecture.source import Module
from tests.architecture.texts import SEARCHES, STRIPS, TAKES_APART, is_of_others, texts_taken_apart, values_printed

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
}


# Modules that print a value of theirs, or of Python's, and may take that apart: a text is all that it is.
READS_ITSELF = {
    "weft.data.remote": "addresses of files, as people write them",
    "weft.errors": "how Python writes a letter that cannot be shown",
}


def parsed_texts(module: Module) -> list[str]:
    """What was just printed of a value and is taken apart; in program and plan any text that is not someone else's."""
    fix = "carry a value instead of our own print-out; texts of others: add the module to READS_TEXT with the reason"
    lines = []
    for node in module.nodes if module.name not in READS_ITSELF else ():
        values = [value for text in texts_taken_apart(module, node) for value in values_printed(module, text)]
        if any(not is_of_others(module, value) for value in values):
            lines.append(node.lineno)
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
        case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str(part)), *_]) if (
            name in SEARCHES | STRIPS
        ):
            return not part.isidentifier()  # `dims.find("batch")`
        case ast.Compare(left=ast.Constant(value=str()), comparators=[ast.Attribute(attr=name)]):
            return name in ("text", "type") and isinstance(node.ops[0], ast.In | ast.NotIn)
        case ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Slice()):
            return name in ("text", "type")
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
        ("weft.program.work", "hits = str(jaxpr).count('all_gather')", True),
        ("weft.cli.show", "lines = program.show().splitlines()", True),
        ("weft.cli.show", "first = program.text().split('\\n')[0]", True),
        (
            "weft.cli.show",
            "def f():\n    text = program.text(lines=False)\n    return [l for l in text.splitlines() if l]",
            True,
        ),
        ("weft.interop.saving", "dims = str(x.dims).split()", True),
        ("weft.data.images", "sizes = str(x.dims).split()", True),
        ("weft.data.images", "def f(x):\n    text = repr(x)\n    return text.split('[')[1]", True),
        ("weft.interop.mapping", "axes = f'{layout}'.split(',')", True),
        ("weft.train.config", "rows = ledger.table().splitlines()", True),
        ("weft.train.foresight", "text = '{}'.format(plan)\nseconds = text.split()[0]", True),
        ("weft.train.foresight", "def f():\n    text = '{}'.format(plan)\n    return text.split()[0]", True),
        ("weft.train.foresight", "def f():\n    text = '%s' % plan\n    return text.partition(' ')[0]", True),
        ("weft.train.foresight", "def f():\n    return (str(plan) + '').splitlines()", True),
        ("weft.train.foresight", "def f():\n    return str(plan).lower().split()", True),
        ("weft.train.foresight", "def f():\n    if (text := str(plan)).startswith('a step'): return text", True),
        ("weft.train.foresight", "def f():\n    text: str = str(plan)\n    return text.split()", True),
        ("weft.train.foresight", "def f():\n    a, b = str(plan), 1\n    return a.split()", True),
        ("weft.train.foresight", "seconds = str(plan)[8:12]", True),
        (
            "weft.train.foresight",
            "NUMBER = re.compile('[0-9]+')\ndef f(plan):\n    return NUMBER.findall(str(plan))",
            True,
        ),
        ("weft.train.foresight", "def f(plan):\n    return re.sub(' +', ' ', plan.table())", True),
        ("weft.train.foresight", "def f(plan):\n    return str(plan).count('all_reduce')", True),
        ("weft.train.foresight", "def f(plan):\n    return 'does not fit' in plan.table()", True),
        (
            "weft.train.foresight",
            "with io.StringIO() as out, redirect_stdout(out):\n    print(plan)\nlines = out.getvalue().splitlines()",
            True,
        ),
        ("weft.train.foresight", "def f(plan):\n    return json.loads(plan.to_json())['seconds']", True),
        (
            "weft.cli.plan",
            "def f(ledger):\n    shown = ledger.printed()\n    return [p.text.split()[0] for p in shown]",
            True,
        ),
        ("weft.spmd.place", "sizes = [int(s) for s in mesh.describe().split()]", True),
        ("weft.models.stack", "rules = str(x.layout).replace('params.', '')", True),
        ("weft.cli.search", "layout = ranked.text.split()[0]", True),
        ("weft.cli.search", "def f(ranked):\n    words = ranked.text\n    return words.split()[0]", True),
        ("weft.train.log", "text = str(spike)\nstep = int(text.split()[1])", True),
        (
            "weft.cli.show",
            "def show(program):\n    lines = program.text().splitlines()\n    return [l for l in lines if '>>' in l]",
            True,
        ),
        ("weft.cli.show", "def show(ledger):\n    header, *rows = ledger.table().split('\\n')\n    return rows", True),
        ("weft.cli.plan", "def f(plan):\n    data = json.loads(plan.to_json())\n    return data['seconds']", True),
        ("weft.cli.plan", "def f(plan):\n    out = plan.to_json()\n    return json.loads(out)", True),
        ("weft.train.checks", "def f(layout):\n    return str(layout) == 'batch:rows'", True),
        ("weft.interop.saving", "def f(x):\n    return tuple(str(x.dims).split(' '))", True),
        ("weft.interop.saving", "def f(x):\n    description = f'{x!r}'\n    return description.split('[')[0]", True),
        ("weft.interop.saving", "def f(tensor):\n    return re.findall(r'(\\w+)=(\\d+)', str(tensor))", True),
        ("weft.data.images", "def f(batch):\n    return [str(dim).split('=')[0] for dim in batch.dims]", True),
        ("weft.data.lm", "def f(x):\n    shown = repr(x.dims)\n    return shown.partition('=')[2]", True),
        ("weft.nn.attention", "def f(x):\n    if str(x.layout).count('+') > 1: raise E", True),
        ("weft.nn.attention", "def f(mask):\n    return str(mask) != 'Mask()'", True),
        (
            "weft.spmd.border",
            "_SIZES = re.compile('[0-9]+')\ndef f(mesh):\n    return [int(n) for n in _SIZES.findall(str(mesh))]",
            True,
        ),
        ("weft.spmd.border", "def f(mesh):\n    return mesh.describe().splitlines()[0]", True),
        ("weft.plan.compile", "def f(line):\n    return line.text.split('  ')", True),
        ("weft.program.lines", "def f(line):\n    return line.text.startswith('>>')", True),
        ("weft.cli.terminal", "def f(printed):\n    return printed.text.split('  ')", True),
        ("weft.cli.terminal", "def f(lines):\n    return [line.text.lstrip(' >') for line in lines]", True),
    ],
)
def test_a_parsed_print_out_is_caught(name, source, caught):
    assert bool(parsed_texts(Module(name, source))) == caught
