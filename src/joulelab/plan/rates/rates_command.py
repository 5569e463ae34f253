"""Check, fetch and list prices and carbon intensities: `joulelab plan rates check | fetch | list | table`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import format_examples, json_option
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from joulelab.plan.rates.rate import Rate

FORMS = (
    ("380, 0.4kg/kWh", "a carbon intensity in g/kWh, or in its unit"),
    ("0.32EUR, 85EUR/MWh", "a price; currencies are never converted"),
    ("table:DE, table:DE:2024", "the mean of a year; all zones: joulelab site --list"),
    ("table:mine.toml:DE", "the same from your copy: joulelab plan rates table > mine.toml"),
    ("grid.csv", "a series over time with `# unit:` and `# kind:` lines"),
    ("tariff.toml", "prices by days, hours and months"),
    ("em:DE, em:DE:direct", "Electricity Maps, with your key; keep it: plan rates fetch"),
)


@click.group("rates", epilog=format_examples("joulelab plan rates list", "joulelab plan rates check prices.csv"))
def command() -> None:
    """Check, fetch and list prices and carbon intensities."""


@command.command(
    "check", epilog=format_examples("joulelab plan rates check prices.csv", "joulelab plan rates check table:DE")
)
@click.argument("spec", metavar="FILE|SPEC")
@json_option
def check(spec: str, as_json: bool) -> None:
    """Describe a rate: kind, unit, values, span, gaps.

    SPEC is written as in all plans: 380, 0.32EUR, table:DE, FILE.csv, TARIFF.toml, em:DE.
    """
    from joulelab.plan.rates.find_rate import find_rate

    _print_rate(find_rate(spec), spec, as_json)


@command.command(
    "fetch",
    epilog=format_examples(
        "joulelab plan rates fetch em:DE --forecast --to de.csv",
        "joulelab plan rates fetch em:DE --since 2026-11-01 --to de.csv",
    ),
)
@click.argument("spec", metavar="em:ZONE")
@click.option("--to", "file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="CSV file to write.")
@click.option("--since", metavar="TIME", help="Start: 2026-11-01 or 2026-11-01T06:00Z (UTC).  [default: a day ago]")
@click.option("--until", metavar="TIME", help="End.  [default: now; of a forecast: three days ahead]")
@click.option("--forecast", is_flag=True, help="Fetch the newest forecast instead of actual values.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
def fetch(
    spec: str, file: Path, since: str | None, until: str | None, forecast: bool, force: bool, as_json: bool
) -> None:
    """Fetch carbon intensities from Electricity Maps into a CSV file.

    All plans read the file. The key is taken from ELECTRICITY_MAPS_TOKEN, or from the file that
    ELECTRICITY_MAPS_TOKEN_FILE names; never from the command line.
    """
    from joulelab.cli.output import show_progress, write_file
    from joulelab.plan.rates.electricity_maps import TITLE, WORD, fetch_intensity, find_access, make_label
    from joulelab.plan.rates.find_rate import find_rate
    from joulelab.plan.rates.rate_series import write_series

    word, _, rest = spec.partition(":")
    if word != WORD:
        find_rate(spec)  # says what is wrong with a removed service
        raise ConfigError(f"{spec!r} is not a service", next="write em:ZONE; other services: name a CSV file")
    zone, _, covers = rest.partition(":")
    label, times = make_label(zone, covers), (_read_time(since), _read_time(until))
    if file.exists() and not force:
        raise ConfigError("the file exists", where=str(file), next="name another, or add --force")
    with show_progress(f"asking {TITLE}"):
        found = fetch_intensity(label, find_access(os.environ), *times, forecast=forecast)
    write_file(file, write_series(found).encode(), what="series", option="--to")
    print_notice(f"wrote {file}")
    _print_rate(found, str(file), as_json)


@command.command("list", epilog=format_examples("joulelab plan rates list"))
@json_option
def list_rates(as_json: bool) -> None:
    """List the ways to write a rate."""
    if as_json:
        from joulelab.site.intensity import load_intensity_table

        rows = [row.to_json() for row in load_intensity_table().search_rows()]
        print_json({"forms": [{"spec": spec, "meaning": meaning} for spec, meaning in FORMS], "table": rows})
        return
    from joulelab.cli.output import print_blocks
    from joulelab.report.tables import make_table

    print_blocks([make_table(("written as", "meaning"), FORMS, left=(0, 1))])


@command.command("table", epilog=format_examples("joulelab plan rates table > mine.toml"))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def table(file: Path | None, as_json: bool) -> None:
    """Print the annual table as TOML, or check an edited FILE.

    Use an edited copy as table:mine.toml:DE.
    """
    from joulelab.site.intensity import load_intensity_table, read_own_text

    if as_json:
        print_json([row.to_json() for row in load_intensity_table(file).search_rows()])
    elif file is None:
        sys.stdout.write(read_own_text())
    else:
        click.echo(f"{file} has {len(load_intensity_table(file).rows)} rows; use it as table:{file}:ZONE")


def _print_rate(rate: Rate, spec: str, as_json: bool) -> None:
    from joulelab.plan.rates.rates_output import describe_rate, lay_out_rate

    if as_json:
        print_json({"spec": spec} | describe_rate(rate))
        return
    from joulelab.cli.output import print_blocks

    print_blocks(lay_out_rate(rate))


def _read_time(text: str | None) -> float | None:
    """Return a time in s since 1970; without an offset it is in UTC."""
    from joulelab.plan.rates.time_zones import convert_to_utc, find_time_zone, read_moment

    try:
        return None if text is None else convert_to_utc(read_moment(text), find_time_zone("UTC"))
    except JoulelabError as error:
        raise click.UsageError(str(error)) from None
