"""Eight virtual processors for every test, asked for before anything starts JAX; `--accept` for the goldens.

This machine is not measured: made-up figures lie in a cache of the tests' own.
"""

import collections
import gc
import json
import os
import tempfile
from pathlib import Path

import jax
import pytest

from tests.environment import SETTINGS
from weft.plan import this_machine

DURATIONS = Path(__file__).parent / "durations.json"
MOST_IN_SMOKE = 4  # seconds of a file
os.environ.update(SETTINGS, XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {SETTINGS['XLA_FLAGS']}".strip())
gc.set_threshold(50_000, 20, 50)  # what is traced lives long: looking for cycles in it took 6 % of the time
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_num_cpu_devices", 8)

_cache = tempfile.TemporaryDirectory(prefix="weft-tests-")
os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = _cache.name
_figures = {"float32": 5e10, "bfloat16": 4e10, "elementwise_per_s": 2e9, "bandwidth": 1e10, "memory": 16 * 2**30}
_figures |= {"call_s": 1e-5, "sending_s": 1e-4, "sending_s_a_processor": 1e-5, "sent_per_s": 2e9}
this_machine.cache_file().parent.mkdir()
this_machine.cache_file().write_text(json.dumps(_figures | {"cpu": "made up", "cores": 2, "jax": jax.__version__}))


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the printed programs in tests/goldens/ anew")
    parser.addoption("--smoke", action="store_true", help="only files that take little time")
    told = "write tests/durations.json: seconds of each file's quick and slow tests"
    parser.addoption("--write-durations", action="store_true", help=told)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """`@pytest.mark.quick("a row", "another")`: the other rows of that test are slow."""
    found = yield
    for mark in getattr(obj, "pytestmark", []) if isinstance(found, list) else []:
        if mark.name == "quick":
            rows = {item.callspec.id: item for item in found}
            if missing := set(mark.args) - set(rows):
                raise collector.CollectError(
                    f"{name} has no rows {missing}, which are to be quick; it has {list(rows)}"
                )
            for row in set(rows) - set(mark.args):
                rows[row].add_marker("slow")
    return found


def pytest_collection_modifyitems(config, items):
    """Files that take longest come first, so that no worker is left alone with one at the end; new ones before all.

    Those that train come before the others: what one of them compiled is of use to the next.
    """
    known = json.loads(DURATIONS.read_text(encoding="utf-8"))
    kinds = {"not slow": ["quick"], "slow": ["slow"]}.get(config.option.markexpr, list(known))
    run = [known[kind] for kind in kinds]

    def took(item):
        file = file_of(item.nodeid)
        return sum(seconds.get(file, 0) for seconds in run) if any(file in seconds for seconds in run) else 1e9

    items.sort(key=lambda item: (not is_training(item), -took(item)))
    if config.getoption("--smoke"):
        left_out = [item for item in items if took(item) > MOST_IN_SMOKE]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if took(item) <= MOST_IN_SMOKE]


_seconds = {"quick": collections.Counter(), "slow": collections.Counter()}


def file_of(test):
    return test.split("::")[0].removeprefix("tests/")


def is_training(test):
    return file_of(test.nodeid).startswith(("train/", "cli/"))


def pytest_runtest_logreport(report):
    _seconds["slow" if "slow" in report.keywords else "quick"][file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    if session.config.getoption("--write-durations") and not hasattr(session.config, "workerinput"):
        known = json.loads(DURATIONS.read_text(encoding="utf-8"))
        for kind, took in _seconds.items():
            all_files = known[kind] | {file: round(seconds, 1) for file, seconds in took.items()}
            known[kind] = {file: all_files[file] for file in sorted(all_files) if (DURATIONS.parent / file).exists()}
        DURATIONS.write_text(json.dumps(known, indent=0) + "\n", encoding="utf-8")


def pytest_runtest_teardown(item, nextitem):
    """What a file compiled is of no use to one of another kind: without this a worker grows to several GB."""
    is_over = nextitem is None or file_of(nextitem.nodeid) != file_of(item.nodeid)
    if is_over and not (nextitem is not None and is_training(item) and is_training(nextitem)):
        jax.clear_caches()
