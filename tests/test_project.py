"""What the project says of itself holds: licences, security, workflows, the version."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import weft as wf
from tests import licenses

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNSAFE = re.compile(
    r"\bimport (?:pickle|marshal|shelve|dill|cloudpickle|yaml)\b|allow_pickle|(?<![\w.])(?:eval|exec)\(|exec_module\(|"
    r"\bload_pickle|\bos\.system\(|shell=True"
)
ALLOWED = {  # SECURITY.md says of each why it may be
    "weft/plan/compile.py": {"import pickle"},
    "weft/plan/compile_child.py": {"import pickle"},
    "weft/train/own/code.py": {"exec_module("},
}


def test_the_page_of_licences_is_that_of_the_lock():
    rows = re.findall(r"^\| ([\w.-]+) \| (\S+) \| (.+?) \| (\w+) \|$", licenses.PAGE.read_text(), re.MULTILINE)
    groups, locked = licenses.needed_by(), licenses.locked()
    now = {(name, version, groups.get(name, "dev")) for name, (version, _) in locked.items()}
    assert {(name, version, group) for name, version, _, group in rows} == now, "run `python -m tests.licenses`"
    for name, version, said, _ in rows:
        try:
            is_here = importlib.metadata.version(name) == version
        except importlib.metadata.PackageNotFoundError:
            is_here = False
        assert said != "not said" and (not is_here or licenses.license_of(name) == said), name
    assert {name for name, *_, group in rows if group == "core"} >= {"jax", "numpy", "equinox", "optax"}
    assert {name: group for name, *_, group in rows}["orbax-checkpoint"] == "train"


def test_the_page_on_layouts_names_every_context_variable():
    page = (ROOT / "docs/decisions/0004-a-tensor-carries-its-layout.md").read_text(encoding="utf-8")
    made = {
        f"{path.relative_to(ROOT / 'weft').with_suffix('')}.{name}"
        for path in (ROOT / "weft").rglob("*.py")
        for name in re.findall(r"^(\w+)(?::.*)? = contextvars\.ContextVar\(", path.read_text(encoding="utf-8"), re.M)
    }
    assert len(made) > 5
    assert set(re.findall(r"^\| `([\w/]+\.\w+)` \|", page, re.M)) == made


def test_the_page_on_dependencies_has_each_of_them():
    page = (ROOT / "docs/decisions/0005-dependencies.md").read_text(encoding="utf-8").lower()
    extras = PROJECT["optional-dependencies"]
    listed = [
        *PROJECT["dependencies"],
        *(name for part in ("train", "hf", "data", "cloud", "dev") for name in extras[part]),
    ]
    names = {re.match(r"[\w-]+", name)[0].removesuffix("-checkpoint") for name in listed}
    assert {name for name in names if name not in page} == set()


def test_nothing_is_read_that_could_run_code_but_what_security_says():
    found = {}
    for path in sorted((ROOT / "weft").rglob("*.py")):
        if said := {match[0] for match in UNSAFE.finditer(path.read_text())}:
            found[path.relative_to(ROOT).as_posix()] = said
    assert found == ALLOWED


@pytest.mark.parametrize("name", ["check.yml", "nightly.yml"])
def test_a_workflow_runs_targets_that_are_there(name):
    workflow = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        (made,) = [step["run"].split()[1] for step in job["steps"] if step.get("run", "").startswith("make ")]
        matrix = job.get("strategy", {}).get("matrix", {})
        wanted = matrix["target"] if "matrix.target" in " ".join(str(step) for step in job["steps"]) else [made]
        assert set(wanted) <= targets
        if "python" in matrix:
            named = {f"Programming Language :: Python :: {version}" for version in matrix["python"]}
            assert named == {line for line in PROJECT["classifiers"] if " :: Python :: 3" in line}


def test_issue_forms_are_read():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert path.name == "config.yml" or {"name", "description", "body"} <= set(form)


def test_the_promise_is_that_of_this_version():
    minor = wf.__version__.rpartition(".")[0]
    assert f"Weft is at {minor}." in (ROOT / "docs/compatibility.md").read_text()
    supported = next(line for line in PROJECT["dependencies"] if line.startswith("jax"))
    assert supported == "jax>=0.10.2,<0.13"
    assert "0.10.2 to 0.12" in (ROOT / "docs/compatibility.md").read_text()
