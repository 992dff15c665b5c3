"""Runs notebooks without Jupyter: each cell in turn, and what it prints and shows.

    python -m tests.notebooks docs/notebooks/*.ipynb    # runs each in its own interpreter, and keeps what came out

What a notebook would show of the last line of a cell is its `repr`, and its `_repr_html_` where it has one.
"""

import ast
import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def executed(path: Path) -> dict[str, Any]:
    """The notebook with what its cells give now; run in a fresh interpreter."""
    command = [sys.executable, "-m", "tests.notebooks", "--run", str(path)]
    # As at a user's: what tests say to JAX for themselves is left out.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTEST_"))
    }
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook after its code ran in this interpreter."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell |= {"execution_count": number, "outputs": _outputs(number, "".join(cell["source"]), namespace)}
    return notebook


def _outputs(number: int, source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    name = f"cell_{number}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree, shown = ast.parse(source), None
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), namespace)
        shown = eval(compile(last, name, "eval"), namespace) if last is not None else None
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if shown is not None:
        data = {"text/plain": repr(shown).splitlines(keepends=True)}
        if hasattr(shown, "_repr_html_"):
            data["text/html"] = shown._repr_html_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def text_of(notebook: dict[str, Any]) -> str:
    """A notebook as it is stored."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        import weft as wf

        warnings.simplefilter("error", wf.WeftWarning)
        json.dump(run(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))), sys.stdout)
    else:
        for given in sys.argv[1:]:
            Path(given).write_text(text_of(executed(Path(given))), encoding="utf-8")
