"""What docstrings show after `>>>` is what comes out."""

import doctest
import importlib
import pkgutil

import weft

LEAST = 75  # examples there are


def test_the_examples_in_docstrings_are_true():
    names = [module.name for module in pkgutil.walk_packages(weft.__path__, "weft.")]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names if "__main__" not in name}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) >= LEAST
