"""Set or show the price of electricity, the carbon intensity and the PUE of this place: `joulelab site --zone DE`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_blocks, print_json, print_notice
from joulelab.cli.parameters import UsageError, config_option, format_examples, json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock
    from joulelab.run.config.configuration import ConfiguredSite
    from joulelab.site.intensity import IntensityRow

EXAMPLES = format_examples(
    "joulelab site --zone DE --price 0.30EUR --pue 1.2",
    "joulelab site",
    "joulelab site --list united",
    'joulelab site --intensity 45 --source "our supplier" --year 2025',
)
KEYS = ("zone", "year", "covers", "intensity", "source", "price", "pue")
NOT_SET = "No site is set: runs show neither cost nor CO2e. Nothing is guessed."


@click.command("site", epilog=EXAMPLES)
@click.argument("text", required=False)
@click.option("--zone", metavar="ZONE", help="Country: DE, DEU or Germany.")
@click.option("--year", type=int, metavar="YEAR", help="Year of the carbon intensity.  [default: newest]")
@click.option(
    "--covers", metavar="KIND", help="Emissions: lifecycle or direct.  [default: that of the zone's best figure]"
)
@click.option(
    "--intensity", type=float, metavar="G", help="Your own carbon intensity in g/kWh; needs --source, --year."
)
@click.option("--source", metavar="TEXT", help="Source of your own intensity.")
@click.option("--price", metavar="PRICE", help="Price of a kWh: 0.30EUR, 30ct, 95EUR/MWh.")
@click.option("--pue", type=float, metavar="PUE", help="Power of the building divided by that of its computers: 1.2.")
@click.option("--list", "listed", is_flag=True, help="List the zones, or those that contain TEXT.")
@click.option("--remove", is_flag=True, help="Remove the site.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Write this file.  [default: your own]")
@click.option("--system", is_flag=True, help="Write the file for all users of this machine.")
@config_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    text: str | None,
    listed: bool,
    remove: bool,
    file: Path | None,
    system: bool,
    config: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Set or show the site: carbon intensity, price of electricity, PUE.

    It is written once, as [site] of your joulelab.toml. From then on every run records it and shows cost and CO2e.
    Options that are not given keep their values.
    """
    values = {key: value for key, value in given.items() if value is not None}
    if text is not None and not listed:
        raise UsageError("needs-list", f"{text!r} is not an option; type `joulelab site --list {text}`")
    if sum(map(bool, (listed, remove, values))) > 1:
        raise UsageError("exclusive", "--list, --remove and new values exclude each other")
    if file is not None and system:
        raise UsageError("exclusive", "--file and --system exclude each other")
    if (file is not None or system) and not (values or remove):
        raise UsageError("needs-values", "--file and --system need a value to write, such as --zone DE")
    if listed:
        _print_zones(text or "", as_json=as_json)
        return
    if values or remove:
        _write_values(_choose_file(file, config, system=system), values, config)
    from joulelab.run.config.configuration import load_site

    found = load_site(os.environ, named=config)
    for problem in found.problems:
        print_notice(str(problem))
    if as_json:
        print_json(_describe_site(found))
    else:
        print_blocks(_lay_out_site(found))
    context.exit(2 if found.problems else 0)


def _choose_file(file: Path | None, named: Path | None, *, system: bool) -> Path:
    from joulelab.run.config.config_files import FILE_VARIABLE, get_system_file, get_user_file

    if system:
        return get_system_file(os.environ)
    chosen = file or named or (Path(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else None)
    return (chosen or get_user_file(os.environ)).absolute()


def _write_values(file: Path, given: dict[str, Any], named: Path | None) -> None:
    """Write the values into [site] of a file, or remove it if none are given. Raises ConfigError."""
    from joulelab.core.errors import ConfigError
    from joulelab.run.config.config_files import read_toml
    from joulelab.run.config.configuration import load_site
    from joulelab.run.config.toml_writing import write_site
    from joulelab.site.site_settings import merge_site_values, read_site

    known = read_toml(file, "configuration file")[1].get("site", {}) if file.exists() else {}
    known = known if isinstance(known, dict) else {}
    if not given:
        if not known:
            other = load_site(os.environ, named=named).files
            then = f"add --file {other[-1]}" if other else "there is none in other files either"
            raise ConfigError("there is no [site] to remove", where=str(file), next=then, code="config.no-site")
        write_site(file, None)
        return
    is_other_place = "zone" in given or "intensity" in given
    values = merge_site_values(known, given) if is_other_place else {**known, **given}
    ordered = {key: values[key] for key in (*KEYS, *values) if key in values}
    read_site(ordered)  # nothing is written that a run would refuse
    write_site(file, ordered)
    stronger = load_site(os.environ, named=named).files[-1:]
    if stronger and stronger[0].resolve() != file.resolve():
        print_notice(f"{stronger[0]} has a [site], too, and wins over {file}")


# ---- output


def _describe_site(found: ConfiguredSite) -> dict[str, Any]:
    return {
        "site": None if found.site is None else found.site.to_json(),
        "values": found.values,
        "files": [str(file) for file in found.files],
        "figures": [row.to_json() for row in _list_figures(found)],
    }


def _list_figures(found: ConfiguredSite) -> list[IntensityRow]:
    """Return all figures that the tables have for the zone, also those that are not used."""
    from joulelab.site.intensity import load_intensity_table

    return load_intensity_table().list_rows(found.site.zone) if found.site is not None and found.site.zone else []


def _lay_out_site(found: ConfiguredSite) -> list[TextBlock]:
    from joulelab.core.quantity import J_PER_KWH, Quantity
    from joulelab.report import format as fmt
    from joulelab.report.footprint_text import NO_SITE_COMMAND, word_source
    from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts
    from joulelab.site.footprint import compute_footprint

    site = found.site
    if site is None:
        return [TextLine(NOT_SET), TextLine(f"-> {NO_SITE_COMMAND}", is_wrapped=False)]
    unset = "not set"
    price = unset if site.price is None else f"{fmt.format_plain(site.price)} {site.currency}/kWh"
    facts = [("carbon", word_source(site) or f"{unset}: joulelab site --zone DE")]
    facts += [("remark", site.note)] if site.note else []
    facts += [("price", price if site.price is not None else f"{unset}: joulelab site --price 0.30EUR")]
    facts += [
        ("PUE", fmt.format_plain(site.pue) if "pue" in found.values else f"{unset}: energy is counted as measured")
    ]
    each = compute_footprint(Quantity(J_PER_KWH), site)
    amounts = [f"{fmt.format_plain(each.cost.value, 4)} {site.currency}"] if each.cost is not None else []
    amounts += [f"{fmt.format_plain(each.co2e_kg.value, 4)} kg CO2e"] if each.co2e_kg is not None else []
    facts += [("1 kWh", f"{' and '.join(amounts)}, with the PUE" if "pue" in found.values else " and ".join(amounts))]
    facts.append(("from", ", ".join(map(str, found.files))))
    blocks: list[TextBlock] = [list_facts(facts)]
    rows = _list_figures(found)
    if len(rows) > 1:
        used = [
            row for row in rows if (row.g_per_kwh, row.year, row.source) == (site.g_per_kwh, site.year, site.source)
        ]
        blocks += [BLANK_LINE, TextLine(f"All figures for {site.name}; * is used:"), _make_figure_table(rows, used)]
    return blocks


def _make_figure_table(rows: Sequence[IntensityRow], used: Sequence[IntensityRow]) -> Table:
    from joulelab.report import format as fmt
    from joulelab.report.tables import make_table

    cells = [
        (
            "*" if row in used else "",
            fmt.format_plain(row.g_per_kwh),
            str(row.year),
            row.covers,
            row.source,
        )
        for row in rows
    ]
    return make_table(("", "g/kWh", "year", "covers", "source"), cells, left=(0, 3, 4))


def _print_zones(text: str, *, as_json: bool) -> None:
    from joulelab.core.errors import ConfigError
    from joulelab.report import format as fmt
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import BLANK_LINE, TextLine
    from joulelab.site.intensity import COUNTRY_LICENCE, COUNTRY_SOURCE, load_intensity_table, name_zone

    table = load_intensity_table()
    rows = table.search_rows(text)
    if not rows:
        then = "give your own with --intensity, or list all zones: joulelab site --list"
        raise ConfigError(f"no zone contains {text!r}", next=then, code="config.unknown-zone")
    if as_json:
        print_json([{"country": name_zone(row.zone)} | row.to_json() for row in rows])
        return
    own = set(table.rows)
    cells = [
        (
            row.zone,
            name_zone(row.zone),
            fmt.format_plain(row.g_per_kwh),
            str(row.year),
            row.covers,
            "*" if row in own else "",
        )
        for row in rows
    ]
    listed = make_table(("zone", "country", "g/kWh", "year", "covers", ""), cells, left=(0, 1, 4, 5))
    blocks: list[TextBlock] = [listed, BLANK_LINE]
    if own.intersection(rows):
        blocks.append(TextLine("* has a source of its own, and is used first. All sources:"))
        blocks.append(TextLine("-> joulelab site --list --json", is_wrapped=False))
    blocks.append(TextLine(f"Others: {COUNTRY_SOURCE}; licence: {COUNTRY_LICENCE}."))
    print_blocks(blocks)
