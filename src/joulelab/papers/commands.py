"""Run the studies of three papers on twins, and put what comes out beside what they print: `joulelab reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import format_examples, json_option, studies_option
from joulelab.report.tables import DOCUMENT_FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.papers.changes import Change
    from joulelab.papers.told import Told

FORMATS = ("text", *DOCUMENT_FORMATS, "csv", "json")
PAPERS = ("bnl", "horeka", "gdansk")
ALL = "all"


@click.command("reproduce", epilog=format_examples("joulelab reproduce gdansk", "joulelab reproduce all --no-keep"))
@click.argument("paper", type=click.Choice([*PAPERS, ALL]))
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a physical parameter of the twin: gpu.idle_w=30, or NODE:gpu.idle_w=30. Repeatable.",
)
@click.option(
    "--seed", type=click.IntRange(0), metavar="N", help="Seed of scatter and order.  [default: from the study file]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for tables and figures.  [default: beside the runs]",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format.")
@click.option("--figures/--no-figures", default=None, help="Draw figures.  [default: if matplotlib is installed]")
@click.option("--keep/--no-keep", default=True, help="Keep the runs, not only tables and figures.  [default: keep]")
@studies_option
@json_option
def command(
    paper: str,
    changes: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    form: str,
    figures: bool | None,
    keep: bool,
    studies: Path,
    as_json: bool,
) -> None:
    """Repeat a published study on a simulated node, and compare.

    Prints published beside reproduced figures of the paper; figures that the simulated node was calibrated on are
    listed apart from predicted ones, and misses are marked. Finished runs are not repeated; a changed node gets another
    folder.
    """
    from joulelab.papers.changes import read_change
    from joulelab.papers.reproducing import Asked, check_nodes, reproduce

    read = [read_change(text) for text in changes]
    chosen = list(PAPERS) if paper == ALL else [paper]
    check_nodes(chosen, read)
    told: list[Told] = []
    for name in chosen:
        mine = _of(name, read) if paper == ALL else read
        asked = Asked(name, mine, seed=seed, studies=studies.absolute(), out=out, figures=figures, keep=keep)
        told.append(reproduce(asked, print_notice))
        if form == "text" and not as_json:
            _print([told[-1]], form, first=len(told) == 1)
    if as_json or form == "json":
        print_json({"schema": 1, "papers": [each.to_json() for each in told]})
    elif form != "text":
        _print(told, form)
    elif len(told) > 1:
        from joulelab.papers.told import together

        click.echo(f"\nAll papers: {together(told)}")


def _of(paper: str, changes: Sequence[Change]) -> list[Change]:
    """Return the changes that are for a paper's own twins, where all are reproduced."""
    from joulelab.papers.reproducing import node_names

    return [change for change in changes if not change.node or change.node in node_names(paper)]


def _print(told: Sequence[Told], form: str, *, first: bool = True) -> None:
    from joulelab.papers import comparison_tables, reproduction_text

    if form == "text":
        from joulelab.cli.output import print_blocks

        if not first:
            click.echo(f"\n{'=' * 60}\n")
        for each in told:
            print_blocks(reproduction_text.lay_out_told(each))
    elif form == "csv":
        sys.stdout.write(comparison_tables.figures_csv([(each.paper.name, each.figures) for each in told]))
    else:
        sys.stdout.write("\n".join(reproduction_text.told_document(each, form) for each in told))
    sys.stdout.flush()
