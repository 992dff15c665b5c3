"""Much is compiled here and run once."""

from tests.compiling import compile_quickly  # noqa: F401
