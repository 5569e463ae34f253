"""Write the files of a study and print its results, for `sweep` and `study`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from joulelab.cli.output import measure_terminal, print_blocks, print_json, print_notice
from joulelab.report.messages import word_notes
from joulelab.report.result_json import describe_summary
from joulelab.report.study_summary import map_twins, name_study_twins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.paper_tables import Spread
    from joulelab.study.folder import Study
    from joulelab.study.results import Results


def show_study(
    study: Study,
    results: Results,
    summary: StudySummary,
    *,
    as_json: bool,
    figures: bool | None,
    form: str = "text",
    every: bool = False,
) -> None:
    """Write the files of a sweep, and print its results as text or in another format of `print_report`."""
    files = write_study_files(study, results, summary, figures=figures)
    if as_json:
        print_json(_describe_study(study, results, summary, files))
        return
    print_report(study, results, summary, form=form, spread="expanded", files=files, every=every)


def print_report(
    study: Study,
    results: Results,
    summary: StudySummary,
    *,
    form: str,
    files: list[Path],
    spread: Spread = "expanded",
    every: bool = False,
) -> None:
    """Print the results of a study as text, Markdown, LaTeX, CSV or JSON.

    Text is one table and few notes unless `every` table is asked for; `spread` is the figure after ± in those for
    papers.
    """
    from joulelab.report import paper_tables, study_tables

    remark = name_study_twins(study)
    shown: dict[str, Any] = {"spread": spread, "scope": study.data["scope"]}
    if form == "json":
        more = {"twin": map_twins(study), "paper": paper_tables.describe_paper(summary, **shown)["tables"]}
        print_json(_describe_study(study, results, summary, files) | more)
    elif form == "text":
        _print_text(study, results, summary, every=every, shown=shown)
        print_written(files)
    elif form == "csv":
        from joulelab.report.study_csv import write_statistics_csv

        sys.stdout.write(write_statistics_csv(summary, _map_cells_to_twins(study)))
    else:
        from joulelab.report.tables import DOCUMENT_FORMATS

        head = f"{DOCUMENT_FORMATS[form].comment}{remark}\n\n" if remark else ""
        paper = paper_tables.write_paper_document(summary, form, **shown)
        sys.stdout.write(f"{head}{paper}\n{study_tables.write_study_document(summary, form)}")


def _print_text(
    study: Study, results: Results, summary: StudySummary, *, every: bool, shown: Mapping[str, Any]
) -> None:
    """Print the answer, one table and three notes, or every table and note."""
    from joulelab.report.matrix_tables import lay_out_matrix
    from joulelab.report.paper_tables import lay_out_paper
    from joulelab.report.study_tables import lay_out_study
    from joulelab.report.terminal import TextLine

    notes = word_notes(results.notes)
    title = " · ".join(filter(None, (study.name, name_study_twins(study))))
    if not every:
        print_blocks([TextLine(title), *lay_out_matrix(summary, notes)])
        return
    papers = lay_out_paper(summary, width=measure_terminal(), **shown)
    print_blocks([TextLine(title), *lay_out_study(summary, every=True), *papers])
    for note in notes:
        print_notice(note)


def _describe_study(study: Study, results: Results, summary: StudySummary, files: Sequence[Path]) -> dict[str, Any]:
    head = {"study": study.name, "folder": str(study.folder), "files": [str(file) for file in files]}
    return {**head, **describe_summary(summary, results.notes), "slots": results.rows, **_describe_precision(results)}


def _describe_precision(results: Results) -> dict[str, Any]:
    return {"precision": [one.to_json() for one in results.precision]} if results.precision else {}


def _map_cells_to_twins(study: Study) -> dict[str, str]:
    """Return the twin of each cell by the key of the cell; empty if the study has no twins."""
    twins = map_twins(study)
    return {key: twins.get(cell.workload.node_type, "") for key, cell in study.read_cells().items()} if twins else {}


def print_written(files: list[Path]) -> None:
    """Print the names of written files."""
    from joulelab.cli.output import shorten_path

    by_folder: dict[Path, list[str]] = {}
    for file in files:
        by_folder.setdefault(shorten_path(file).parent, []).append(file.name)
    for folder, names in by_folder.items():
        print_notice(f"written to {folder}: {', '.join(names)}")


def write_study_files(study: Study, results: Results, summary: StudySummary, *, figures: bool | None) -> list[Path]:
    """Write the files of a study beside its cells and return them; print why one cannot be written.

    Raises MissingDependency if figures are required and cannot be drawn.
    """
    from joulelab.report.study_csv import RESULTS_FILE, write_study_csvs

    if (study.folder / RESULTS_FILE).exists() and not any(cell.trials for cell in results.cells):
        print_notice(
            f"no cell of this plan has run: {study.folder / RESULTS_FILE} and the files beside it are unchanged"
        )
        return []
    written: list[Path] = []
    for name, text in write_study_csvs(summary, results.rows, _map_cells_to_twins(study)).items():
        file = study.folder / name
        if text and _write_text(file, text):
            written.append(file)
        elif not text:
            with contextlib.suppress(OSError):
                file.unlink()  # of an earlier report
    if figures is not False:
        written += _draw_figures(study, summary, asked=bool(figures))
    return written


def _write_text(file: Path, text: str) -> bool:
    """Write a file whole or not at all; return whether it is written, print why not."""
    from joulelab.store.safe_files import replace_file

    try:
        replace_file(file, text.encode(), sync=False)
    except OSError as error:
        print_notice(f"{file} is not written ({error.strerror})")
        return False
    return True


def _draw_figures(study: Study, summary: StudySummary, *, asked: bool) -> list[Path]:
    from joulelab.core.errors import MissingDependency

    try:
        from joulelab.report.charts.print_pictures import write_study_figures

        remark = name_study_twins(study)
        write_study_figures(
            summary, study.folder / "figures", remark=f"{remark[:1].upper()}{remark[1:]}." if remark else ""
        )
    except MissingDependency as error:
        if asked:
            raise
        print_notice(str(error))
        return []
    except OSError as error:
        print_notice(f"{error.filename or study.folder / 'figures'} is not written ({error.strerror})")
        return []
    return [study.folder / "figures"]
