"""What the tests of errors share: a caught error whose form is checked, and a region to raise it in."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest

import weft as wf

STATE = re.compile(r"(?:(?P<around>.+)   )?at (?P<file>\S+):(?P<line>\d+) in \S+\Z")


def error_of(act: Callable[[], Any], kind: type[wf.WeftError] = wf.WeftError) -> wf.WeftError:
    """The error that `act` raises; its text is the fact, the state with the test's own line, and the fix."""
    with pytest.raises(kind) as caught:
        act()
    check_form(caught.value, {sys._getframe(1).f_code, *_codes(act)})
    return caught.value


def check_form(error: wf.WeftError, codes: set[CodeType]) -> None:
    """Fails unless the error reads as every error does and names a line of one of these functions."""
    assert isinstance(error, wf.WeftError)
    first, *_, last = lines = str(error).splitlines()
    assert len(lines) >= 3
    assert error.fact and error.fact.splitlines()[0] == first
    assert error.state and error.state.splitlines()[-1] in str(error)
    assert last.strip() == f"fix: {error.fix}" and error.fix
    found = STATE.search(error.state)
    assert found, f"no file and line in {error.state!r}"
    assert os.path.basename(found["file"]) in {os.path.basename(code.co_filename) for code in codes}
    assert int(found["line"]) in {line for code in codes for line in _lines(code)}


def _codes(fn: Any) -> set[CodeType]:
    """The code of a test's function, and of those of its file that it uses."""
    found: set[CodeType] = set()
    waiting = [fn]
    while waiting:
        fn = getattr(fn := waiting.pop(), "fn", fn)  # a region is looked into
        if not isinstance(fn, FunctionType) or fn.__code__ in found or "site-packages" in fn.__code__.co_filename:
            continue
        found.add(fn.__code__)
        waiting += inspect.getclosurevars(fn).nonlocals.values()
        waiting += [v for v in inspect.getclosurevars(fn).globals.values() if _is_near(v, fn)]
    return found


def _is_near(value: Any, fn: FunctionType) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename == fn.__code__.co_filename


def line_of(error: wf.WeftError) -> int:
    """The line the error names."""
    found = STATE.search(error.state)
    assert found
    return int(found["line"])


def marked_line(test: Callable[..., Any]) -> int:
    """The line of a test that ends in `# here`."""
    with open(test.__code__.co_filename) as file:
        lines = file.read().splitlines()
    own = set(_lines(test.__code__))
    return next(i for i, line in enumerate(lines, 1) if i in own and line.endswith("# here"))


def _lines(code: CodeType) -> Iterator[int]:
    """The lines of a function and of those it holds."""
    yield from (line for _, _, line in code.co_lines() if line is not None)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner)


def on_rows(fn: Callable[..., Any], layout: str = "batch:rows") -> Callable[..., Any]:
    """`fn` in a region of four processors, which the layout splits `batch` over."""
    return wf.spmd(fn, mesh="rows=4", layout=layout)


def is_inside(error: wf.WeftError, layout: str = "batch:rows", mesh: str = "rows=4") -> bool:
    """Whether the state names the layout and the mesh of the region that the error was raised in."""
    return f"layout: {layout}   " in error.state and f"mesh: {mesh}   " in error.state
