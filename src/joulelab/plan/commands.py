"""Plan with what was measured: `joulelab plan rack | cost | when | cooling | queue | rates`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from joulelab.cli.parameters import format_examples

if TYPE_CHECKING:
    from collections.abc import Mapping

# The help of each command, so that `joulelab plan --help` imports none. A test compares it with the commands.
COMMANDS: Mapping[str, str] = {
    "rack": "Find how many nodes fit in a rack, by each rule, with the risk.",
    "cost": "Compute energy, cost and carbon of runs or planned work, per site.",
    "when": "Find the start, pauses and caps of a job with least carbon or cost.",
    "cooling": "Compare kinds of cooling and inlet temperatures.",
    "queue": "Simulate a queue of jobs under a power budget, with caps per job.",
    "rates": "Check, fetch and list prices and carbon intensities.",
}

ALIASES = {"carbon": "cost", "schedule": "queue"}  # hidden, for one release

EXAMPLES = format_examples(
    "joulelab plan rack last --supply 70kW --margin 27%",
    "joulelab plan cost last --tariff 0.32EUR --pue 1.3",
    "joulelab plan when last --intensity forecast.csv --deadline 48h",
)


class Plans(click.Group):
    """Find the commands by name, and import only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Return a command, None where there is none of that name."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"joulelab.plan.{cmd_name}.{cmd_name}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command("plan", cls=Plans, epilog=EXAMPLES)
def command() -> None:
    """Plan racks, cost, carbon and start times from measurements."""
