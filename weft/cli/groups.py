"""The map of the command line: commands by what they are for, where to begin.

A command says its group where it is registered, as `rich_help_panel`; the map is made of what is registered.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from .usage import misuse_reported

READ, PLAN, TRAIN, ASK, WEIGHTS, MACHINE = (
    "Read a program", "Plan before you run", "Train", "Ask a trained model", "Move weights", "This machine",
)  # fmt: skip
GROUPS = (READ, PLAN, TRAIN, ASK, WEIGHTS, MACHINE)

BEGIN = (
    ("weft doctor", "what is here, what is missing, and how to get it"),
    ("weft show tiny-lm --mesh rows=2,cols=4 --layout batch:rows,heads:cols", "a program, line by line"),
    ("weft new mine.toml", "a run's file; then `weft train mine.toml`"),
)
ENDING = "`weft COMMAND --help` says more, with examples; `weft --install-completion` completes words by Tab."


class CommandMap(TyperGroup):
    """The command `weft` itself, whose help is the map."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Reads the words of `weft` itself."""
        with misuse_reported():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Reads the words of a command, and runs it."""
        with misuse_reported():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """All of it, options too: `weft --help`."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_map(ctx, formatter)
        super().format_options(ctx, formatter)
        _write_line(formatter, ENDING)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Nothing more: the map has them."""

    def format_map(self, ctx: Any, formatter: Any) -> None:
        """Where to begin, and each command on a line, in its group."""
        with formatter.section("Begin here"):
            for command, what in BEGIN:
                formatter.write(
                    f"{'':>{formatter.current_indent}}{command}\n{'':>{formatter.current_indent + 4}}{what}\n"
                )
        commands = self.by_group(ctx)
        width = max(len(name) for group in commands.values() for name in group)
        for title, group in commands.items():
            with formatter.section(title):
                for name, line in group.items():
                    formatter.write(f"{'':>{formatter.current_indent}}{name:<{width}}  {line}\n")

    def by_group(self, ctx: Any) -> dict[str, dict[str, str]]:
        """The commands that are shown and the first line of each, by group."""
        groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                line = (command.help or "").strip().partition("\n")[0].rstrip(".")
                groups.setdefault(getattr(command, "rich_help_panel", None) or "Others", {})[name] = line
        return {title: group for title, group in groups.items() if group}


def map_text(ctx: typer.Context) -> str:
    """The map, for `weft` alone."""
    assert isinstance(ctx.command, CommandMap)
    formatter = ctx.make_formatter()
    ctx.command.format_help_text(ctx, formatter)
    ctx.command.format_map(ctx, formatter)
    _write_line(formatter, ENDING)
    return str(formatter.getvalue())


def _write_line(formatter: Any, text: str) -> None:
    formatter.write(f"\n{text}\n")
