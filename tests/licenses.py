"""The licences of what Weft needs, as docs/licenses.md has them: `python -m tests.licenses` writes the page anew.

Names and versions are those of requirements.lock, licences what each installed package says of itself.
"""

import importlib.metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licenses.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("train", "hf", "data", "dev")  # in the lock, beside the core; a package counts with the first that needs it
HEAD = """# Licences of what Weft needs

Weft is Apache-2.0. This page is written by `python -m tests.licenses` from `requirements.lock` and from what each
package says of itself; a test fails where the lock has moved on. `needed by` is the first extra that brings a
package: `core` is what `pip install` takes without any.

The extras `gpu`, `gpu13` and `kernels` bring NVIDIA's CUDA libraries, under NVIDIA's own licence, and `tpu` Google's
`libtpu`; `docs` brings MkDocs (BSD-2-Clause) and Material for MkDocs (MIT). None of them is in the lock, and nothing
of any package here is copied into Weft.

| package | version | licence | needed by |
|---|---|---|---|
"""
_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Licences in classifiers and in words, by their names of SPDX."""


def locked() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each package of the lock: its version, and what it is needed by."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for block in re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.IGNORECASE):
        if head := re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([\w.+!-]+)", block):
            via = re.search(r"# via((?: |\n +# +)[\s\S]*)", block)
            needs = re.findall(r"(?<=[# ])([a-z0-9][\w.-]*)(?:\[[\w,-]+\])?", via[1].replace("#", " ")) if via else []
            found[_plain(head[1])] = (head[2], tuple(map(_plain, needs)))
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_by() -> dict[str, str]:
    """The first of `core` and the extras that brings each package."""
    packages = locked()
    groups = {"core": PROJECT["dependencies"], **{name: PROJECT["optional-dependencies"][name] for name in EXTRAS}}
    first: dict[str, str] = {}
    for group, requirements in groups.items():
        reached = [_plain(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements]
        while reached:
            name = reached.pop()
            if name in packages and name not in first:
                first[name] = group
                reached += [other for other, (_, needs) in packages.items() if name in needs]
    return first


def license_of(name: str) -> str:
    """What an installed package says of its licence, in one line."""
    said = importlib.metadata.metadata(name)
    if expression := said.get("License-Expression"):
        return expression
    classified = [one.rpartition(" :: ")[2] for one in said.get_all("Classifier", []) if one.startswith("License ::")]
    classified = [one for one in classified if one != "OSI Approved"]
    words = classified or [(said.get("License") or "").strip().partition("\n")[0]]
    return " or ".join(_WORDS.get(word, word) for word in words) or "not said"


def page() -> str:
    """The page, from the lock and what is installed."""
    groups = needed_by()
    rows = [
        f"| {name} | {version} | {license_of(name)} | {groups.get(name, 'dev')} |\n"
        for name, (version, _) in sorted(locked().items())
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
