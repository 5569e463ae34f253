"""Print the methods paragraph for a paper: `joulelab cite [RUN...|STUDY]`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import measure_terminal, print_json, show_progress
from joulelab.cli.parameters import format_examples, json_option, runs_option, studies_option

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from joulelab.analysis.result import Result
    from joulelab.report.citation import MethodFacts
    from joulelab.study.folder import Study

WIDEST = 100  # a paragraph in wider lines is hard to read


@click.command(
    "cite",
    epilog=format_examples("joulelab cite", "joulelab cite last", "joulelab cite study.toml --format latex"),
)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "latex"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@json_option
@runs_option
@studies_option
def command(targets: tuple[str, ...], form: str, as_json: bool, runs: Path, studies: Path) -> None:
    """Print a methods paragraph for a paper, and the citation of joulelab.

    The paragraph states the meters, their accuracy, the sampling, the intervals, and the parts without a meter. TARGET
    is a run (an id, a name or a path), several runs, or a study (its name, folder or file). Without a TARGET only the
    citation is printed.
    """
    from joulelab.report.citation import word_methods, write_bibtex, write_citation

    facts = gather_named_runs(targets, runs, studies)[1] if targets else None
    sentences = [] if facts is None else word_methods(facts)
    if as_json:
        plain = None if facts is None else facts.to_json()
        print_json({"facts": plain, "text": " ".join(sentences), "bibtex": write_bibtex()})
    elif form == "text" and sentences:
        width = min(measure_terminal(), WIDEST)
        wrapped = textwrap.fill(" ".join(sentences), width, break_long_words=False, break_on_hyphens=False)
        click.echo(f"{wrapped}\n\n{write_bibtex()}")
    else:
        click.echo(write_citation(sentences, form), nl=False)


def gather_named_runs(
    targets: tuple[str, ...], runs: Path, studies: Path
) -> tuple[list[Result], MethodFacts, list[dict[str, Any]]]:
    """Read the runs that words name, or those of a study: results, how they were measured, and each `run.json`.

    Raises JoulelabError.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.cli.report import find_target
    from joulelab.core.errors import StoreError
    from joulelab.report.citation import describe_study, gather_methods
    from joulelab.store.run_folder import read_meta

    target = find_target(targets, runs, studies)
    study, counts = None, []
    folders = list(target.runs)
    if target.study is not None:
        by_cell = _list_study_runs(target.study)
        folders, counts = [run for cell in by_cell for run in cell], [len(cell) for cell in by_cell]
        study = describe_study(target.study, counts)
        if not folders:
            then = f"joulelab study status {targets[0]}"
            raise StoreError(
                "no run of the study is finished", where=target.study.name, next=then, code="store.not-run-yet"
            )
    with show_progress(f"reading {len(folders)} runs", total=len(folders)) as step:
        results = []
        for folder in folders:
            results.append(load_result(folder))
            step()
    metas = [read_meta(folder) for folder in folders]
    return results, gather_methods(results, metas, study), metas


def _list_study_runs(study: Study) -> list[list[Path]]:
    """Return the finished runs of each cell of a study."""
    from joulelab.study.slots import list_claimed_slots, read_slot

    cells = []
    for key in study.read_cells():
        slots = [read_slot(folder) for folder in list_claimed_slots(study.folder / "cells" / key)]
        done = [slot for slot in slots if slot.state == "done" and slot.folder.name.startswith("r")]
        cells.append([slot.run for slot in done if slot.run is not None])
    return cells
