"""Functions are verbs, a class name has one meaning, and docstrings say what is so in a line that fits."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.house import complaints, package_modules
from tests.architecture.source import Module, room_of

PARTICIPLE = re.compile(r"([a-z]+)(?:_(?:by|on|out|after|to|for|in|at|from|with|as|of|over))?")
IRREGULAR = frozenset(
    """begun bought bound brought built caught chosen done drawn driven found given gone grown held hidden kept known
    left lent lost made meant met paid said seen sent shown sold spent taken taught thought told understood won
    written""".split()
)
VERBS = frozenset("embed feed need speed bring seed exceed bound".split())
NOUNS = frozenset("sharding listing scaling ring hidden".split())
# Functions that are called so all the same.
PARTICIPLES = {
    **dict.fromkeys(("renamed", "resized", "padded_to"), "a changed copy, as Python's `sorted`"),
    **dict.fromkeys(("measured", "compiled_for", "prefetched", "printed", "traced"), "called from outside"),
    **dict.fromkeys(("recorded", "bounded"), "what is decorated, or a field, is so"),
    "varying": "the axes a value varies over",
    "summed": "JSON with a sum of its bits",
    "sharing": "a number: on one in how many rows a processor works",
    "drawing": "the noun",
}
MAX_FIRST_LINE = 79
OF_CLASSES = re.compile(r"\b([Nn]amed[Tt]uple|TypedDict|Enum|make_dataclass|NewType)$")
ALONE = re.compile(
    r"\bimports (?:(?P<first>[\w ,]+?) (?:alone|only|and nothing else)\b|nothing of\b|no (?:other )?room|"
    r"(?:only|nothing but) (?P<but>[\w ,]+))",
    re.IGNORECASE,
)


def participles(module: Module) -> list[str]:
    """Functions called by what was done, or is being done, and not by what they do: `joined`, `checking`.

    A property says what something is; a context manager what holds inside it; a function within another is no name.
    """
    complaints = []
    for node in module.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or module.is_within_function(node):
            continue
        around = " ".join(ast.unparse(part) for part in (*node.decorator_list, node.returns) if part is not None)
        word = PARTICIPLE.fullmatch(node.name.strip("_"))
        is_one = word and (word[1] in IRREGULAR or re.search("(ed|ing)$", word[1])) and word[1] not in VERBS | NOUNS
        if is_one and not re.search(r"property|contextmanager|ContextManager", around):
            complaints.append(f"{module.name}:{node.lineno} `{node.name}` is no verb; fix: say what it does")
    return [complaint for complaint in complaints if complaint.split("`")[1] not in PARTICIPLES]


def wrong_imports_told(module: Module) -> list[str]:
    """A docstring that says which rooms a module imports `alone`, and it imports others."""
    told = ALONE.search(re.sub(r"[`\s]+", " ", ast.get_docstring(module.tree) or ""))
    if told is None:
        return []
    named = told["first"] or told["but"] or ""
    rooms = set(re.split(r", | and ", named)) - {""}
    real = {room_of(imported.name) for imported in module.imports if imported.name.startswith("weft.")} - {module.room}
    return [f"{module.name}: `{told[0]}`, and it imports {', '.join(sorted(real)) or 'none'}"] if rooms != real else []


def long_first_lines(module: Module) -> list[str]:
    """Docstrings whose first line does not fit where editors and `help` show it alone."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    complaints = []
    for node in module.nodes:
        first = (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, documented) else ""
        if len(first) > MAX_FIRST_LINE:
            where = f"{module.name}:{getattr(node, 'lineno', 1)}"
            complaints.append(f"{where} first line of a docstring has {len(first)} characters: {first}")
    return complaints


def classes_of(module: Module) -> Iterator[tuple[str, int]]:
    """The classes of a module and their lines, made by `NamedTuple(...)` too; not those in functions and classes."""
    waiting: list[ast.AST] = list(module.tree.body)
    for node in waiting:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.ClassDef(name=name):
                yield name, node.lineno
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=by)) if OF_CLASSES.search(ast.unparse(by)):
                yield name, node.lineno
        waiting += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]


def classes_of_one_name(modules: list[Module]) -> list[str]:
    """Class names with two meanings; a leading underscore makes no difference to a reader."""
    places: dict[str, dict[str, int]] = {}
    for module in modules:
        for name, line in classes_of(module):
            places.setdefault(name.strip("_"), {}).setdefault(module.name, line)
    return [
        f"class {name} stands in {' and '.join(f'{module}:{line}' for module, line in where.items())}"
        for name, where in places.items()
        if len(where) > 1
    ]


@pytest.mark.parametrize("rule", [participles, wrong_imports_told, long_first_lines])
def test_every_module_keeps(rule):
    assert complaints(rule) == []


def test_a_class_name_has_one_meaning():
    assert classes_of_one_name(package_modules()) == []


@pytest.mark.parametrize("length", [MAX_FIRST_LINE, MAX_FIRST_LINE + 1])
def test_a_long_first_line_is_caught(length):
    sources = [f'"""{"x" * length}"""', f'def f():\n    """{"x" * length}\n\n    More.\n    """']
    for source in sources:
        assert bool(long_first_lines(Module("weft.dims", source))) == (length > MAX_FIRST_LINE)


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("def joined(x): ...", True),
        ("class A:\n  def _checked(self): ...", True),
        ("def stored_by(x): ...", True),
        ("def join(x): ...", False),
        ("def embed(x): ...", False),
        ("def stored_slice(x): ...", False),
        ("@property\ndef closed(self): ...", False),
        ("@contextlib.contextmanager\ndef tracing(): ...", False),
        ("def outer():\n  def decorated(): ...", False),
        ("class Dim:\n  def renamed(self): ...", False),
        ("def told(x): ...", True),
        ("def written(x): ...", True),
        ("def found(x): ...", True),
        ("class A:\n    def given(self): ...", True),
        ("def made_of(x): ...", True),
        ("def _known(x): ...", True),
        ("def held_by(x): ...", True),
        ("def shown(x): ...", True),
        ("def taken_from(x): ...", True),
    ],
)
def test_a_function_that_is_no_verb_is_caught(source, caught):
    assert bool(participles(Module("weft.dims", source))) == caught


def test_each_participle_that_may_be_is_one():
    defined = {node.name for module in package_modules() for node in module.nodes if isinstance(node, ast.FunctionDef)}
    assert PARTICIPLES.keys() <= defined


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("'''Text.\n\nImports errors alone.'''\nfrom .errors import WeftError", False),
        ("'''Text.\n\nImports errors and\nchecks alone.'''\nfrom .errors import WeftError", True),
        ("'''Text.\n\nImports errors alone.'''\nfrom .errors import WeftError\nfrom .checks import is_whole", True),
        ("'''Text.\n\nImports nothing of the house.'''\nfrom .errors import WeftError", True),
        ("'''Text.\n\nImports nothing of the house.'''\nimport os", False),
        ("'''Text.\n\nImports the language.'''\nfrom .errors import WeftError", False),
        ("'''Layers.\n\nImports errors only.'''\nfrom .errors import E\nfrom .checks import C", True),
        ("'''Layers.\n\nImports nothing but errors.'''\nfrom .errors import E\nfrom .checks import C", True),
        ("'''Layers.\n\nIt imports errors and nothing else.'''\nfrom .errors import E\nfrom .checks import C", True),
        ("'''Layers.\n\nImports no other room.'''\nfrom .errors import E\nfrom .checks import C", True),
        ("'''Layers.\n\nImports `errors` alone.'''\nfrom .errors import E\nfrom .checks import C", True),
    ],
)
def test_wrongly_told_imports_are_caught(source, caught):
    assert bool(wrong_imports_told(Module("weft.dims", source))) == caught


def test_a_class_name_of_two_meanings_is_caught():
    first, second = Module("weft.dims", "class Row: ..."), Module("weft.plan.cost", "class _Row: ...")
    assert classes_of_one_name([first, second]) == ["class Row stands in weft.dims:1 and weft.plan.cost:1"]
    assert classes_of_one_name([first]) == []
    for source in (
        "Row = NamedTuple('Row', [])",
        "Row = collections.namedtuple('Row', 'x')",
        "if True:\n  class Row: ...",
    ):
        assert len(classes_of_one_name([first, Module("weft.plan.cost", source)])) == 1
    assert classes_of_one_name([first, Module("weft.plan.cost", "def f():\n  class Row: ...")]) == []
