"""Measure the energy of inference servers: `joulelab serving requests | watch | ...`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from joulelab.cli.parameters import format_examples

if TYPE_CHECKING:
    from collections.abc import Mapping

# Help, module and name of each command, so that `joulelab serving --help` imports none.
COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "watch": ("Watch the energy per token of a server under its own traffic.", "energy_commands", "watch_command"),
    "requests": ("Divide the energy of a run among its requests.", "energy_commands", "requests_command"),
}
EXAMPLES = format_examples(
    "joulelab serving watch --url http://127.0.0.1:8000",
    "joulelab serving requests last --by team",
)


class ServingCommands(click.Group):
    """Find the commands by name, and import only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Return a command, None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        _, module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"joulelab.serving.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (text, *_) in COMMANDS.items()])


@click.command("serving", cls=ServingCommands, epilog=EXAMPLES)
def command() -> None:
    """Measure the energy of inference servers: per token, per request, under load."""
