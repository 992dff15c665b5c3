"""Wrong use of the command line, said like any other error, with status 2.

Imports nothing of the house. Typer raises what is wrong, in words of its own and of the library that reads numbers.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    """A command with a usage free of braces: `weft show [OPTIONS] MODEL`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage."""
        return [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


@contextlib.contextmanager
def misuse_reported() -> Iterator[None]:
    """Prints what is wrong with the words of a command on stderr, and exits with 2."""
    try:
        yield
    except _UsageError as error:
        typer.echo(describe(error), err=True)
        raise typer.Exit(2) from None


def describe(error: Any) -> str:
    """What is wrong with the words of a command: fact, usage, fix."""
    fact, fix = _fact_and_fix(error)
    context = error.ctx
    if context is None:
        return f"error: {fact}" + (f"\n  fix: {fix}" if fix else "")
    usage = context.get_usage().removeprefix("Usage: ")
    more = f"`{context.command_path} --help` has the options and examples"
    between = fix and (" " if fix.endswith("?") else "; ")
    return f"error: {fact}\n  usage: {usage}\n  fix: {fix}{between}{more}"


def _fact_and_fix(error: Any) -> tuple[str, str]:
    kind, message = type(error).__name__, error.format_message()
    if kind == "MissingParameter":
        return f"{_find_option(error)} is missing", _example(error.ctx)
    if kind == "NoSuchOption":
        near = " or ".join(f"`{option}`" for option in error.possibilities or ())
        return f"there is no option `{error.option_name}`", near and f"did you mean {near}?"
    if kind == "BadOptionUsage" and "requires an argument" in message:
        return f"`{error.option_name}` stands without a value", "write one after it"
    if unknown := re.match(r"No such command '(.*?)'\.?(?: Did you mean (.*)\?)?", message):
        near = (unknown[2] or "").replace("'", "`")
        return f"there is no command `{unknown[1]}`", near and f"did you mean {near}?"
    if more := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return f"`{more[1]}` is more than the command takes", _example(error.ctx)
    if (value := _value(error)) is not None:
        return f"{_find_option(error)} is `{value}`", f"give {_describe_type(error.param)}"
    return (f"{_find_option(error)}: {error.message}" if kind == "BadParameter" else message), ""


def _find_option(error: Any) -> str:
    """The option or the argument that is wrong: `--batch`, MODEL."""
    if error.param_hint is not None:
        return str(error.param_hint)
    if error.param is None:
        return "an argument"
    names = error.param.opts
    return f"`{max(names, key=len)}`" if names[0].startswith("-") else str(error.param.metavar or names[0].upper())


def _value(error: Any) -> Any:
    """What was given for a number, if that is what could not be read."""
    read = getattr(error.__cause__, "errors", None)
    return read()[0]["input"] if callable(read) and error.param is not None else None


def _describe_type(param: Any) -> str:
    """What an option takes: `a whole number from 1 on`."""
    is_whole = getattr(getattr(param, "type_descriptor", None), "annotation", None) is int
    what, low, high = "a whole number" if is_whole else "a number", param.min, param.max
    if low is not None and high is not None:
        return f"{what} from {low:g} to {high:g}"
    if low is not None:
        return f"{what} above 0" if 0 < low < 1e-6 else f"{what} from {low:g} on"
    return f"{what} up to {high:g}" if high is not None else what


def _example(context: Any) -> str:
    """The first example of a command's help."""
    examples = re.findall(r"(?m)^  (weft .+?)(?:  +#.*)?$", context.command.epilog or "")
    return f"write it like `{examples[0]}`" if examples else ""
