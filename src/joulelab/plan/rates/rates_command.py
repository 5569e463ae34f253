"""Look at prices and carbon intensities: `joulelab plan rates check | list | table | fetch`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import format_examples, json_option
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.plan.rates.rate import Rate

# What may be said of a file of values on the command line, by the key of a description.
DESCRIBED = {
    "kind": "Kind: average, marginal or price.",
    "unit": "Unit: g/kWh, lb/MWh, EUR/MWh, ct/kWh, ...",
    "zone": "Zone of the grid.",
    "covers": "Emissions: direct or lifecycle.",
    "source": "Where the values come from.",
    "time_zone": "Time zone of times without offset: Europe/Berlin.",
    "time_column": "Column of the times.",
    "value_column": "Column of the values.",
    "end_column": "Column of the times at which values end.",
    "u_column": "Column of standard uncertainties.",
    "step": "How long each value holds: 1h.",
    "end": "When the last value ends; each holds until the next.",
    "issued": "When a forecast was made.",
}


def _kept_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--kept", type=click.Path(path_type=Path), default="joulelab-rates", show_default=True, metavar="DIR",
        help="Folder of series that were fetched.",
    )(function)  # fmt: skip


def _described_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for key, text in reversed(DESCRIBED.items()):
        function = click.option(f"--{key.replace('_', '-')}", key, metavar="TEXT", help=text)(function)
    return function


@click.group("rates", epilog=format_examples("joulelab plan rates list", "joulelab plan rates check prices.csv"))
def command() -> None:
    """Check, fetch and list prices and carbon intensities."""


@command.command(
    "check",
    epilog=format_examples(
        "joulelab plan rates check prices.csv",
        "joulelab plan rates check caiso.csv --kind marginal --unit lb/MWh --save",
    ),
)
@click.argument("spec", metavar="FILE|SPEC")
@_described_options
@click.option("--save", is_flag=True, help="Save these options in a TOML file beside the values.")
@_kept_option
@json_option
def check(spec: str, save: bool, kept: Path, as_json: bool, **said: str | None) -> None:
    """Check a price or carbon intensity: kind, period, gaps.

    SPEC is written as in other plans: 380, 0.32EUR, table:DE, FILE.csv, tariff.toml, kept:NAME, em:DE.
    """
    from joulelab.plan.rates.look import look_at

    given = {key: value for key, value in said.items() if value is not None}
    rate = _described(spec, given, save=save) if given or save else _found(spec, kept)
    look = look_at(rate)
    if as_json:
        print_json({"spec": spec} | look.to_json())
        return
    from joulelab.cli.output import print_blocks
    from joulelab.plan.rates.rates_output import lay_out_look

    print_blocks(lay_out_look(look, spec))


def _found(spec: str, kept: Path) -> Rate:
    from joulelab.plan.rates.find import rate_of

    return rate_of(spec, kept=kept)


def _described(spec: str, given: Mapping[str, str], *, save: bool) -> Rate:
    """Read a file by what the options say of it, and keep that beside it where it is asked for. Raises ConfigError."""
    from joulelab.plan.rates.description import described_by, read_side, side_text
    from joulelab.plan.rates.series_file import read_series

    path, told = Path(spec), described_by(given)
    if path.suffix.lower() == ".toml" or not path.is_file():
        why = None if path.exists() else "there is no such file"
        raise ConfigError("options describe a file of values", where=spec, why=why, next="name a CSV or JSON file")
    if not given:
        raise ConfigError("there is nothing to save", next="say what the values are: --kind average --unit g/kWh")
    side = path.with_suffix(".toml")
    if side.is_file():
        told = read_side(side, path).with_others(told, str(side))
    rate = read_series(path, told=told)
    if save:
        _write_new(side, side_text(path.name, given))
        print_notice(f"wrote {side}")
    return rate


def _write_new(side: Path, text: str) -> None:
    try:
        with side.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigError("it is not written over", where=str(side), next="edit it, or move it away") from None
    except OSError as error:
        raise ConfigError("it cannot be written", where=str(side), why=error.strerror) from None


@command.command("list", epilog=format_examples("joulelab plan rates list"))
@_kept_option
@json_option
def list_rates(kept: Path, as_json: bool) -> None:
    """List known rates: annual table, services, fetched series."""
    from joulelab.plan.rates.annual import read_annual
    from joulelab.plan.rates.kept import list_kept
    from joulelab.plan.rates.look import services_here

    annual, found, services = read_annual(), list_kept(kept), services_here(os.environ)
    if as_json:
        rows = [row.to_json() for row in annual.rows]
        print_json({"table": rows, "services": services, "kept": [one.to_json() for one in found]})
        return
    from joulelab.cli.output import print_blocks
    from joulelab.plan.rates.rates_output import lay_out_rates

    print_blocks(lay_out_rates(annual.rows, services, found))


@command.command("table", epilog=format_examples("joulelab plan rates table > mine.toml"))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def table(file: Path | None, as_json: bool) -> None:
    """Print the annual table as TOML, or check an edited FILE.

    Use an edited copy as table:mine.toml:DE.
    """
    from joulelab.plan.rates.annual import own_table, read_annual

    if as_json:
        print_json([row.to_json() for row in read_annual(file).rows])
    elif file is None:
        sys.stdout.write(own_table())
    else:
        from joulelab.cli.output import print_blocks
        from joulelab.plan.rates.rates_output import make_annual_table

        print_blocks([make_annual_table(read_annual(file).rows)])


@command.command(
    "fetch",
    epilog=format_examples(
        "joulelab plan rates fetch em:DE --forecast",
        "joulelab plan rates fetch em:DE --since 2026-11-01 --until 2026-11-08",
    ),
)
@click.argument("service", metavar="SERVICE[:ZONE]")
@click.option("--since", metavar="TIME", help="From: 2026-11-01 or 2026-11-01T06:00Z (UTC).  [default: a day ago]")
@click.option("--until", metavar="TIME", help="To.  [default: now; of a forecast: three days ahead]")
@click.option("--forecast", is_flag=True, help="The newest forecast instead of actual values.")
@_kept_option
@json_option
def fetch(service: str, since: str | None, until: str | None, forecast: bool, kept: Path, as_json: bool) -> None:
    """Fetch a series from a service, for use without a network.

    Keys are taken from the environment, files or a keyring, never from the command line: see docs/how-to/plan-rates.md.
    """
    from joulelab.cli.output import show_progress
    from joulelab.plan.rates import services
    from joulelab.plan.rates.look import look_at

    word, zone, covers = [*service.split(":"), "", ""][:3]
    with show_progress(f"asking {services.about(word).title}"):
        found = services.fetch(
            word, zone, _time(since), _time(until), forecast=forecast, covers=covers, folder=kept, warn=print_notice
        )
    look = look_at(found)
    if as_json:
        print_json({"spec": found.label.name} | look.to_json())
        return
    from joulelab.cli.output import print_blocks
    from joulelab.plan.rates.rates_output import lay_out_look

    print_blocks(lay_out_look(look, found.label.name))


def _time(text: str | None) -> float | None:
    """Return a time in s since 1970; one without offset is in UTC."""
    from joulelab.plan.rates.description import moment
    from joulelab.plan.rates.zones import utc_of, zone_of

    try:
        return None if text is None else utc_of(moment(text), zone_of("UTC"))
    except JoulelabError as error:
        raise click.UsageError(str(error)) from None
