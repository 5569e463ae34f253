"""Repeat the studies of three papers on twins, and compare with what they print: `joulelab reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_blocks, print_json, print_notice
from joulelab.cli.parameters import format_examples, json_option, studies_option
from joulelab.report.tables import DOCUMENT_FORMATS

if TYPE_CHECKING:
    from joulelab.papers.reproduction import Reproduction

FORMATS = ("text", *DOCUMENT_FORMATS, "csv", "json")
PAPERS = ("bnl", "horeka", "gdansk")
ALL = "all"


@click.command("reproduce", epilog=format_examples("joulelab reproduce gdansk", "joulelab reproduce all --no-keep"))
@click.argument("paper", type=click.Choice([*PAPERS, ALL]))
@click.option("--all", "is_whole", is_flag=True, help="Print every figure, finding and table, and what meters cost.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a physical parameter of the twin: gpu.idle_w=30, or NODE:gpu.idle_w=30. Repeatable.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of the random scatter and order.  [default: from the study file]",
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
    is_whole: bool,
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

    Prints how many figures of the paper are within their tolerance, by a strict and by a wide count, and the misses
    with their reasons. Finished runs are not repeated; a changed node gets another folder.
    """
    from joulelab.papers import reproduction, reproduction_text
    from joulelab.papers.node_changes import check_node_name, read_change
    from joulelab.papers.paper import find_paper

    form = "json" if as_json else form
    chosen = list(PAPERS) if paper == ALL else [paper]
    nodes = {name: reproduction.list_node_names(find_paper(name)) for name in chosen}
    read = [read_change(text) for text in changes]
    for change in read:
        check_node_name(change, set().union(*nodes.values()))
    all_made: list[Reproduction] = []
    for name in chosen:
        own = [change for change in read if not change.node or change.node in nodes[name]]
        options = reproduction.ReproduceOptions(name, own, seed, studies.absolute(), out, figures, keep)
        made = reproduction.reproduce_paper(options, print_notice)
        if form == "text":
            if all_made:
                click.echo(f"\n{'=' * 60}\n")
            print_blocks(reproduction_text.lay_out_reproduction(made, is_whole=is_whole))
            sys.stdout.flush()
        all_made.append(made)
    match form:
        case "json":
            print_json({"schema": 1, "papers": [reproduction_text.make_json(made) for made in all_made]})
        case "csv":
            sys.stdout.write(reproduction_text.write_figures_csv(all_made))
        case "text" if len(all_made) > 1:
            figures_of_all = [figure for made in all_made for figure in made.figures]
            click.echo(f"\nAll papers, strictly: {reproduction_text.word_strict_count(figures_of_all)}")
            click.echo(f"All papers: {reproduction_text.word_wide_count(figures_of_all)}")
        case form if form in DOCUMENT_FORMATS:
            sys.stdout.write("\n".join(reproduction_text.write_document(made, form) for made in all_made))
