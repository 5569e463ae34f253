"""Say what runs or planned work emit: `joulelab plan carbon [RUN...] --intensity table:DE`."""

from __future__ import annotations

from typing import Any

import click

from joulelab.cli.parameters import format_examples
from joulelab.plan.cost.accounting_options import Given, account_options, answer

EXAMPLES = format_examples(
    "joulelab plan carbon last --intensity table:DE --pue 1.3",
    "joulelab plan carbon STUDY --intensity table:DE --work tokens=1e9 --nodes 8",
    "joulelab plan carbon --plan sites.toml --picture carbon.pdf",
)


@click.command("carbon", epilog=EXAMPLES)
@click.option("--intensity", "spec", metavar="SPEC", help="Carbon of a kWh: 380 (g), table:DE, SERIES.csv.")
@account_options
def command(spec: str | None, **given: Any) -> None:
    """Compute the carbon emissions of runs or planned work, per site.

    RUN is a run by id, name, path or `last`, or a study. Intensities may change over time; rated power x
    time is shown for comparison. With --work, --nodes, --cap or --batch the work is planned, scaled from the runs.
    """
    answer("carbon", spec, Given(**given))
