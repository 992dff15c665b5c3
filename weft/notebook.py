"""Pages as a notebook shows them, and who draws them.

What has a page (a program, a plan, a search) stands below what draws it: the room of the page says so once, by
`draw_by`. Imports errors alone.
"""

import html
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import WeftError

_HEIGHT = 640


class Page(str):
    """An HTML page as text, of one file; in a notebook it shows itself in a frame."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # A frame of its own: neither the page's style nor its keys reach the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self)}" sandbox="allow-scripts" title="a page of Weft" '
            f'style="width:100%;height:{_HEIGHT}px;border:1px solid #8884;resize:vertical"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file; where it lies."""
        path = Path(path)
        if path.exists() and path.suffix.lower() not in (".html", ".htm"):
            raise WeftError(
                f"`{path}` is there already, and its name is not that of a page", fix="name a file that ends in .html"
            )
        try:
            path.write_text(self, encoding="utf-8")
        except OSError as error:
            raise WeftError(
                f"`{path}` cannot be written: {error.strerror}", fix="name a file in a folder that is there"
            ) from None
        return path

    def open(self) -> Path:
        """Opens the page in a browser, from a temporary file; where that lies."""
        with tempfile.NamedTemporaryFile(prefix="weft-", suffix=".html", delete=False) as file:
            path = self.save(file.name)
        webbrowser.open(path.as_uri())
        return path


_draw: Callable[[Any, Any], str] | None = None
_import_drawer: Callable[[], object] | None = None


def import_drawer_by(importing: Callable[[], object]) -> None:
    """Lets the room that draws pages, and measures, be imported when it is needed."""
    global _import_drawer
    _import_drawer = importing


def import_drawer() -> None:
    """Imports the room that draws pages, where it is not there yet."""
    if _import_drawer is not None:
        _import_drawer()


def draw_by(draw: Callable[[Any, Any], str]) -> None:
    """Lets everything that has a page be drawn by this function."""
    global _draw
    _draw = draw


def page_of(shown: Any, against: Any = None) -> Page:
    """The page of something, or of it and another side by side."""
    if _draw is None:
        import_drawer()
    assert _draw is not None, "weft.plan draws pages"
    return Page(_draw(shown, against))
