"""Functions are verbs, a class name has one meaning, and docstrings say what is so in a line that fits."""

import ast
import re

import pytest

from tests.architecture.house import Module, complaints, package_modules, room_of

PARTICIPLE = re.compile(r"([a-z]+(?:ed|ing))(?:_(?:by|on|out|after|to|for|in|at|from|with|as|over))?")
VERBS = frozenset("embed feed need speed bring seed exceed".split())
NOUNS = frozenset("sharding listing scaling ring".split())
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


def participles(module: Module) -> list[str]:
    """Functions called by what was done, or is being done, and not by what they do: `joined`, `checking`.

    A property says what something is; a context manager what holds inside it; a function within another is no name.
    """
    complaints = []
    inner = {
        id(node)
        for outer in module.nodes
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(outer)
        if node is not outer
    }
    for node in module.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or id(node) in inner:
            continue
        around = " ".join(ast.unparse(part) for part in (*node.decorator_list, node.returns) if part is not None)
        word = PARTICIPLE.fullmatch(node.name.strip("_"))
        if word and word[1] not in VERBS | NOUNS and not re.search(r"property|contextmanager|ContextManager", around):
            complaints.append(f"{module.name}:{node.lineno} `{node.name}` is no verb; fix: say what it does")
    return [complaint for complaint in complaints if complaint.split("`")[1] not in PARTICIPLES]


def wrong_imports_told(module: Module) -> list[str]:
    """A docstring that says which rooms a module imports `alone`, and it imports others."""
    told = re.search(
        r"\bimports (?:([\w\s,]+) alone|nothing of)\b", ast.get_docstring(module.tree) or "", re.IGNORECASE
    )
    if told is None:
        return []
    rooms = set(re.split(r",\s+|\s+and\s+", told[1])) if told[1] else set()
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


def classes_of_one_name(modules: list[Module]) -> list[str]:
    """Class names with two meanings; a leading underscore makes no difference to a reader."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.strip("_"), []).append(f"{module.name}:{node.lineno}")
    return [f"class {name} stands in {' and '.join(where)}" for name, where in places.items() if len(where) > 1]


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
    ],
)
def test_wrongly_told_imports_are_caught(source, caught):
    assert bool(wrong_imports_told(Module("weft.dims", source))) == caught


def test_a_class_name_of_two_meanings_is_caught():
    first, second = Module("weft.dims", "class Row: ..."), Module("weft.plan.cost", "class _Row: ...")
    assert classes_of_one_name([first, second]) == ["class Row stands in weft.dims:1 and weft.plan.cost:1"]
    assert classes_of_one_name([first]) == []
