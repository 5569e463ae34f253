"""Say what runs or planned work cost: `joulelab plan cost [RUN...] --tariff 0.32EUR`."""

from __future__ import annotations

from typing import Any

import click

from joulelab.cli.parameters import format_examples
from joulelab.plan.cost.accounting_options import Given, account_options, answer

EXAMPLES = format_examples(
    "joulelab plan cost last --tariff 0.32EUR --pue 1.3",
    "joulelab plan cost STUDY --tariff 0.32EUR --work tokens=1e9 --nodes 8",
    "joulelab plan cost --plan sites.toml --picture cost.pdf",
)


@click.command("cost", epilog=EXAMPLES)
@click.option("--tariff", "spec", metavar="SPEC", help="Price of a kWh: 0.32EUR, TARIFF.toml, PRICES.csv.")
@account_options
def command(spec: str | None, **given: Any) -> None:
    """Compute energy and cost of runs or planned work, per site.

    RUN is a run by id, name, path or `last`, or a study. Prices may change over time; rated power x
    time is shown for comparison. With --work, --nodes, --cap or --batch the work is planned, scaled from the runs.
    """
    answer("cost", spec, Given(**given))
