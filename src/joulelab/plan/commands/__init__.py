"""Plan with what was measured: `joulelab plan rack | cost | carbon | when | cooling | schedule | rates`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

# What `joulelab plan --help` says of each, so that it imports none of them. A test holds it against the commands.
COMMANDS: Mapping[str, str] = {
    "rack": "Say how many nodes fit in a rack, by each rule, and at which risk.",
    "cost": "Say what runs or planned work cost in energy and money, at one site or several.",
    "carbon": "Say what runs or planned work emit, at one site or several.",
    "when": "Say when to run a job, when to pause it and at which cap, at least carbon or cost.",
    "cooling": "Say what another cooling or inlet temperature would change.",
    "schedule": "Run a stream of jobs under a power budget in virtual time, caps chosen per job.",
    "rates": "Look at prices and carbon intensities: check, fetch, list.",
}


class Plans(click.Group):
    """Find the commands by name, and import only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Return a command, None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"joulelab.plan.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command("plan", cls=Plans)
def command() -> None:
    """Plan with what was measured: racks, cost, carbon, when to run."""
