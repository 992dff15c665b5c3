"""No room is named by a string in another."""

import ast
import functools
import re

import pytest

from tests.architecture.house import BELOW, ROOT, complaints
from tests.architecture.source import Module, room_of, words_listed

# What says that a word is the name of a module, or of a file or folder of the package.
OF_MODULES = r"__(name|module|file|package)__|PACKAGE|\b_?HERE\b|weft|\b(room|module|package)\b"
OF_FILES = rf"{OF_MODULES}|\.parts\b|\.parent\b|(?i:filename)|\bco_filename\b"
# Rooms called by a word that keys of a run, splits of data and folders of users have too.
COMMON_WORDS = frozenset("data train plan models program".split())


def rooms_by_name(module: Module) -> list[str]:
    """Rooms that code names by a string in another: `"weft.plan.cost"`, `("nn", "models")`; a sentence may."""
    if module.room == "__init__":  # what is public
        return []
    others = {room for room in BELOW if room != module.room and (ROOT / "weft" / room).is_dir()}
    # `folder / "model.py"` is a file of the user's
    below = {id(node.right) for node in module.nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)}
    texts = [text for text in module.strings if "/" in text.value or id(text) not in below]
    found: list[tuple[ast.AST, str]] = [(text, what) for text in texts if (what := named_by(text.value, others))]
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute | ast.keyword):
            continue
        words = [str(word) for word in words_listed(node)]
        of_others = [word for word in words if word.split(".")[0] in others and is_module(word)]
        if len(of_others) > 1 and BELOW.keys() >= set(words) - set(of_others):
            found.append((node, f"lists the rooms {', '.join(words)} by strings"))
        if re.match(r"weft\.(\w+\.)*\{\}|weft/\{\}/", made_up(node)) or imports_made_up(node):
            found.append((node, f"makes up the name of a room: {ast.unparse(node)}"))
        imported = module.imported_by_call(node) or ""
        named = met_by_modules(module, node) | ({room_of(imported)} if imported.startswith("weft.") else set())
        found += [(node, f"names the room `{room}` by a string") for room in named & others]
    return [f"{module.name}:{getattr(node, 'lineno', 0)} {what}" for node, what in found]


def named_by(text: str, others: set[str]) -> str:
    """What a string names by itself: a module, a folder or a file of another room."""
    if (path := re.fullmatch(r"[/^]?weft(?:\\?[./]|\[\S+?\])[(?:]*(\w+)\S*", text)) and path[1] in others:
        return f"names the room `{path[1]}` by a string"
    path = re.fullmatch(r"\.{0,2}(\w+)(\.\w+)+", text)
    if path and path[1] in others - COMMON_WORDS and is_module(text.strip(".")):
        return f"names the module `{text}` by a string"
    if re.fullmatch(r"/\w+/", text) and text.strip("/") in others - COMMON_WORDS:
        return f"names the folder `{text}` by a string"
    if re.fullmatch(r"[\w/]+\.py", text) and any(f"/{text.strip('/')}" in files_of(room) for room in others):
        return f"names the file `{text}` by a string"
    return ""


@functools.cache
def files_of(room: str) -> frozenset[str]:
    """The files of a room, each under all the ends of its path: `/attention.py`, `/nn/attention.py`."""
    paths = (path.relative_to(ROOT).parts for path in (ROOT / "weft" / room).rglob("[!_]*.py"))
    return frozenset("".join(f"/{part}" for part in parts[i:]) for parts in paths for i in range(len(parts)))


def met_by_modules(module: Module, node: ast.AST) -> set[str]:
    """The words that a node compares with names of modules or files, or looks for among them."""
    match node:
        case ast.Compare(left=one, comparators=[other]):
            sides = [one, other]
        case ast.BinOp(left=one, op=ast.Div(), right=other):
            sides = [one, other]
        case ast.Match(subject=one, cases=cases):
            patterns = [pattern for case in cases for pattern in ast.walk(case.pattern)]
            sides = [one, *(pattern.value for pattern in patterns if isinstance(pattern, ast.MatchValue))]
        case ast.Call(func=ast.Attribute(value=one, attr="joinpath" | "is_relative_to"), args=others):
            sides = [one, *others]
        case ast.Call(func=ast.Name(id="getattr") | ast.Attribute(attr="join"), args=[one, *others]):
            sides = [one, *others]
        case ast.JoinedStr(values=parts):
            return {word for part in parts[1:] for word in ends_of_path(part) if module.says(OF_FILES, parts[0])}
        case _:
            return set()
    inner = [item for side in sides if isinstance(side, ast.Tuple | ast.List | ast.Set) for item in side.elts]
    words = {str(side.value) for side in (*sides, *inner) if isinstance(side, ast.Constant)}
    others = [side for side in sides if not isinstance(side, ast.Constant)] if words & BELOW.keys() else []
    if any(module.says(OF_MODULES, side) for side in others):
        return words
    return words - COMMON_WORDS if any(module.says(OF_FILES, side) for side in others) else set()


def ends_of_path(part: ast.expr) -> list[str]:
    """The first folder of a path that follows another: `nn` of `f"{HERE}/nn"`."""
    is_path = isinstance(part, ast.Constant) and str(part.value).startswith("/")
    return str(part.value).split("/")[1:2] if is_path else []


def made_up(node: ast.AST) -> str:
    """A text that is put together, with `{}` for what is not known: `weft.{}` of `f"weft.{room}"`."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return text.replace("%s", "{}")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (made_up(left) or "{}") + (made_up(right) or "{}")
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"), args=[ast.List() as parts]
        ):
            return between.join(made_up(part) or "{}" for part in parts.elts)
    return ""


def imports_made_up(node: ast.AST) -> bool:
    """Whether a module of weft is imported by a name that is not written there."""
    match node:
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[name, *rest], keywords=words
        ) if not isinstance(name, ast.Constant):
            package = [*rest, *(word.value for word in words)]
            return any(isinstance(one, ast.Constant) and str(one.value).startswith("weft") for one in package)
    return False


@functools.cache
def is_module(name: str) -> bool:
    """Whether there is a file or folder of the package under this dotted name."""
    path = ROOT.joinpath("weft", *name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_every_module_keeps_it():
    assert complaints(rooms_by_name) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.train.log", 'SHOWN = "weft/nn/linear.py"', True),
        ("weft.train.log", 'importlib.import_module("weft.plan.cost")', True),
        ("weft.train.log", 'own = "weft.train.log"', False),
        ("weft.train.log", '"""What weft.plan reads."""', False),
        ("weft.train.log", 'said = "weft plan"', False),
        ("weft.train.log", 'fix = "make it by weft.models.preset"', False),
        ("weft.train.log", 'PROGRAMS = ("nn", "models")', True),
        ("weft.train.log", 'parts = ["nn", "dropout"]', False),
        ("weft.train.log", 'SHOWN = {"nn.lora": "nn.lora.", "nn": "nn."}', True),
        ("weft.train.log", 'PROGRAMS = "nn models".split()', True),
        ("weft.train.log", 'SHOWN = {"data.path": "paths", "data.held_out": "part"}', False),  # keys of a run's file
        ("weft.train.log", 'SHOWN = {"nn": "layers", "other": "else"}', False),
        ("weft.train.log", 'if file.endswith("nn/attention.py"): pass', True),
        ("weft.train.log", 'if file.endswith("attention.py"): pass', True),
        ("weft.train.log", 'files = folder.glob("__init__.py")', False),
        ("weft.train.log", 'ROOMS = ["ops", "spmd", "tensor", "compat"]', True),
        ("weft.train.log", 'SHOWN = {"mesh": 1, "layout": 2, "plan": 3}', False),
        ("weft.train.log", 'if module.__name__.split(".")[1] == "ops": pass', True),
        ("weft.train.log", 'layers = Path(__file__).parent / "nn"', True),
        ("weft.train.log", 'tokens = folder / "data"', False),
        ("weft.train.log", "module = importlib.import_module(f'weft.{room}')", True),
        ("weft.train.log", "module = importlib.import_module('weft.' + room)", True),
        ("weft.train.log", "module = importlib.import_module('weft.{}'.format(room))", True),
        ("weft.train.log", "module = importlib.import_module('weft.%s' % room)", True),
        ("weft.train.log", "module = importlib.import_module('.'.join(['weft', room]))", True),
        ("weft.train.log", "module = importlib.import_module('.plan.cost', 'weft')", True),
        ("weft.train.log", "module = importlib.import_module('..plan.cost', __package__)", True),
        ("weft.train.log", "module = sys.modules[f'weft.{name}.cost']", True),
        ("weft.train.log", "if '/weft/nn/' in filename: pass", True),
        ("weft.train.log", "if '/nn/' in filename: pass", True),
        ("weft.train.log", "if 'nn' in Path(filename).parts: pass", True),
        ("weft.train.log", "if Path(filename).parent.name == 'nn': pass", True),
        ("weft.train.log", "if filename.split(os.sep)[-2] == 'ops': pass", True),
        ("weft.train.log", "folder = os.path.join(HERE, 'nn')", True),
        ("weft.train.log", "folder = f'{HERE}/nn'", True),
        ("weft.train.log", "if filename.endswith('/attention.py'): pass", True),
        ("weft.train.log", "ROOMS = dict(nn='layers', models='models')", True),
        ("weft.train.log", "ROOMS = 'nn,models'.split(',')", True),
        ("weft.train.log", "match room:\n    case 'ops' | 'spmd': pass", True),
        ("weft.train.log", "if room == 'nn': pass", True),
        ("weft.train.log", "kind = 'layer' if module == 'nn.attention' else 'op'", True),
        ("weft.train.log", "_, room, *_ = fn.__module__.split('.')\nif room == 'ops': pass", True),
        ("weft.train.log", "cost = getattr(sys.modules['weft'], 'plan').cost", True),
        ("weft.train.log", "is_layer = re.match(r'weft\\.nn\\.', fn.__module__)", True),
        (
            "weft.errors",
            "def f(fn):\n    room = fn.__module__.split('.')[1]\n    return 'wf.' if room == 'ops' else room",
            True,
        ),
        ("weft.errors", "def f(file):\n    return file.startswith(os.path.join(PACKAGE, 'ops'))", True),
        ("weft.errors", "PACKAGE = os.path.dirname(__file__)\nOPS = os.path.join(PACKAGE, 'ops')", True),
        ("weft.errors", "root = Path(__file__).parent\nINNER = [root / 'ops', root / 'lower']", True),
        ("weft.record", "SKIP = re.compile(r'weft[./](nn|models)')", True),
        ("weft.record", "SKIP = r'weft\\.(nn|models)\\.'", True),
        ("weft.namespace", "def f(name):\n    return importlib.import_module(f'weft.{name}')", True),
        ("weft.namespace", "def f(name):\n    return importlib.import_module('weft.' + name)", True),
        ("weft.namespace", "def f(name):\n    return sys.modules['weft.%s' % name]", True),
        ("weft.namespace", "def f(name):\n    return importlib.import_module('.' + name, 'weft')", True),
        ("weft.namespace", "def f(name):\n    return importlib.import_module(f'.{name}', package='weft')", True),
    ],
)
def test_a_room_named_by_a_string_is_caught(name, source, caught):
    assert bool(rooms_by_name(Module(name, source))) == caught
