"""Fixes in the words of who reads them: what is a call in a program is an option on the command line, a key in a file.

Imports the layouts.
"""

import re

from ..errors import WeftError
from ..layout import as_layout

OPTION, KEY, SET = "--layout {}", 'layout = "{}"', "--set layout={}"


def spoken(fix: str, layout: str = "", how: str = OPTION) -> str:
    """The fix of an error about a mesh or a layout that was given by an option, a key or `--set`.

    >>> spoken("drop the rule: `layout.drop('heads')`", "batch:rows,heads:cols")
    'drop the rule: `--layout batch:rows`'
    >>> spoken("write it like `Mesh('rows=4,cols=2')` or `Mesh(rows=4, cols=2)`", how=KEY)
    'write it like `mesh = "rows=4,cols=2"`'
    """
    mesh = how.replace("layout", "mesh")
    fix = re.sub(r"`layout\.drop\('([^']*)'\)`", lambda found: f"`{how.format(_without(found[1], layout))}`", fix)
    fix = re.sub(r"`Layout\('([^']*)'\)`", lambda found: f"`{how.format(found[1])}`", fix)
    fix = re.sub(r" or `Mesh\(\w+=[^']*\)`", "", fix)
    fix = re.sub(r"`Mesh\('[^']*', devices='cpu'\)`", "`JAX_PLATFORMS=cpu`", fix)
    fix = re.sub(r"`Mesh\('([^']*)'\)`", lambda found: f"`{mesh.format(found[1])}`", fix)
    fix = re.sub(r", or rename one dim to an unsplit name: `x\.rename\(.*?\)`", "", fix)
    return fix.replace("(`wf.trace`)", "(`weft show`)").replace(
        "make the mesh before the first JAX computation, or ", ""
    )


def _without(rule: str, layout: str) -> str:
    try:
        return str(as_layout(layout).drop(rule))
    except WeftError:
        return f"... without `{rule}`"
