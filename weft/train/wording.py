"""Fixes of errors in the words of the command line and of TOML files.

What is a call in a program is an option on the command line, and a key in a file. Imports the layouts.
"""

import re
from collections.abc import Mapping

from ..errors import WeftError
from ..layout import as_layout

OPTION, KEY, SET = "--layout {}", 'layout = "{}"', "--set layout={}"


def reword(fix: str, layout: str = "", form: str = OPTION) -> str:
    """The fix of an error on a mesh or layout said by an option, a key or `--set`.

    >>> reword("drop the rule: `layout.drop('heads')`", "batch:rows,heads:cols")
    'drop the rule: `--layout batch:rows`'
    >>> reword("write it like `Mesh('rows=4,cols=2')` or `Mesh(rows=4, cols=2)`", form=KEY)
    'write it like `mesh = "rows=4,cols=2"`'
    """
    mesh = form.replace("layout", "mesh")
    fix = re.sub(r"`layout\.drop\('([^']*)'\)`", lambda match: f"`{_write(_without(match[1], layout), form)}`", fix)
    fix = re.sub(r"`Layout\('([^']*)'\)`", lambda match: f"`{form.format(match[1])}`", fix)
    fix = re.sub(r" or `Mesh\(\w+=[^']*\)`", "", fix)
    fix = re.sub(r"`Mesh\('[^']*', devices='cpu'\)`", "`JAX_PLATFORMS=cpu`", fix)
    fix = re.sub(r"`Mesh\('([^']*)'\)`", lambda match: f"`{mesh.format(match[1])}`", fix)
    fix = re.sub(r", or rename one dim to an unsplit name: `x\.rename\(.*?\)`", "", fix)
    fix = re.sub(r"write `wf\.Mesh\(.*?\)` above the first line that computes \(.*?\), or ", "", fix)
    return fix.replace("(`wf.trace`)", "(`weft show`)")


_PADDED = re.compile(
    r"make `(?P<dim>\w+)` (?P<multiple>a multiple of \d+ \(nearest: (?:\d+, )?(?P<size>\d+)\)), pad it before it"
    r" comes here \(`wf\.pad_to\(.*?\)`(?:; in a model's configuration (?P<field>`\w+=\d+`))?"
    r"(?P<more>; for [^`)]*)?\), rename it .*?\)`\), or drop"
)


def reword_size(fix: str, said_by: Mapping[str, str]) -> str:
    """The fix of a model's dim that does not divide, by what says the dim's size.

    >>> padded = "pad it before it comes here (`wf.pad_to(x, 'd', 2)`), rename it first (`x.rename(d='d_whole')`)"
    >>> reword_size(f"make `d` a multiple of 2 (nearest: 62, 64), {padded}, or drop `d:x`", {"d": "--decode {}"})
    'make `d` a multiple of 2 (nearest: 62, 64): `--decode 64`, or drop `d:x`'
    """

    def say(match: re.Match[str]) -> str:
        dim, size, field = match["dim"], match["size"], match["field"]
        said = f": `{said_by[dim].format(size)}`" if dim in said_by else " in the model's configuration"
        padded = f", or pad it there: {field}" if field else ""
        return f"make `{dim}` {match['multiple']}{said}{padded}{match['more'] or ''}, or drop"

    return _PADDED.sub(say, fix)


def _write(layout: str, form: str) -> str:
    """A layout as an option or a key has it; the empty one in quotes."""
    return form.format(layout or ("''" if form == OPTION else ""))


def _without(rule: str, layout: str) -> str:
    try:
        return str(as_layout(layout).drop(rule))
    except WeftError:
        return f"... without `{rule}`"
