"""Write a report of a run, several runs or a study, to send to a colleague: `joulelab report [TARGET...]`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import check_overwrite, load_current_site, print_json, print_notice, show_progress, write_file
from joulelab.cli.parameters import UsageError, format_examples, json_option, name_run, runs_option, studies_option
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.report.page.page_blocks import Report
    from joulelab.study.folder import Plan, Study

OWN_MARKS = {"html": '<meta name="generator" content="joulelab">', "md": "<!-- made by joulelab report -->"}
MAX_IDS_IN_NAME = 2
MAX_RUNS = 26  # side by side on one page
MAX_NAME_LENGTH = 80  # letters of a file name


EXAMPLES = format_examples(
    "joulelab report last --open",
    "joulelab report before after -o comparison.html",
    "joulelab report study.toml --to md -o -",
)


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """Hold the subject of a report: folders of runs, or a study; with its plan if its file was named."""

    runs: tuple[Path, ...] = ()
    study: Study | None = None
    plan: Plan | None = None

    @property
    def kind(self) -> str:
        """Return the kind of report."""
        if self.study is not None:
            return "study"
        return {1: "run", 2: "comparison"}.get(len(self.runs), "runs")

    @property
    def name(self) -> str:
        """Return the name that the report's file contains."""
        if self.study is not None:
            return self.study.name
        ids = [run.resolve().name for run in self.runs]
        more = len(ids) - MAX_IDS_IN_NAME
        return "-".join([*ids[:MAX_IDS_IN_NAME], *([f"and-{more}-more"] if more > 0 else [])])


@click.command("report", epilog=EXAMPLES)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--open", "opens", is_flag=True, help="Open the report in the browser.")
@click.option("--to", type=click.Choice(["html", "md"]), default="html", show_default=True, help="Output format.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; `-` is standard output.  [default: joulelab-report-NAME.html]",
)
@click.option("--force", is_flag=True, help="Overwrite a file that is not a report by joulelab.")
@click.option(
    "--twin", "twins", multiple=True, metavar="NODE", help="For a study file: the study that ran on this twin."
)
@json_option
@runs_option
@studies_option
def command(
    targets: tuple[str, ...],
    opens: bool,
    to: str,
    output: Path | None,
    force: bool,
    twins: tuple[str, ...],
    as_json: bool,
    runs: Path,
    studies: Path,
) -> None:
    """Write a report of a run, several runs or a study: one HTML file.

    The file works offline. TARGET is a run (an id, a name or a path; by default the last run) or a study (its name,
    folder or file). Two runs are compared, more are shown side by side.
    """
    to_stdout = str(output) == "-"
    if to_stdout and (opens or as_json):
        raise UsageError("exclusive", f"-o - cannot be used with {'--open' if opens else '--json'}")
    target = find_target(targets or ("last",), runs, studies, twins)
    file = None if to_stdout else _choose_file(target, to, output)
    if file is not None:
        check_overwrite(file, OWN_MARKS[to].encode(), what="report", force=force)
    text = _write_report(target, to)
    if file is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_file(file, text.encode(), what="report")
    if as_json:
        described = {"report": str(file), "kind": target.kind, "format": to, "bytes": len(text.encode())}
        print_json(described | _describe_target(target))
    else:
        click.echo(str(file))
    if opens:
        _open_browser(file)


def find_target(words: Sequence[str], runs: Path, studies: Path, twins: Sequence[str] = ()) -> ReportTarget:
    """Find the runs or the study that words name; a study comes before a run of the same name. Raises JoulelabError."""
    from joulelab.store.run_folder import find_run

    if len(words) == 1:
        found = _find_study(words[0], studies, tuple(twins))
        if found is not None:
            return found
    if twins:
        raise ConfigError(
            "only a study file can be simulated", where="--twin", next="leave it out", code="config.no-study"
        )
    if len(words) > MAX_RUNS:
        raise ConfigError(
            f"{len(words)} runs are too many for one page",
            next=f"name at most {MAX_RUNS}",
            code="config.too-many-runs",
        )
    for word in words[1:] and words:
        if _is_study(Path(word)) or word.endswith(".toml"):
            raise ConfigError(
                "a study cannot be combined with other targets",
                where=word,
                next=f"joulelab report {word}",
                code="config.not-comparable",
            )
    paths = tuple(find_run(runs, word) for word in words)
    seen = [path.resolve() for path in paths]
    twice = next((path for k, path in enumerate(seen) if path in seen[:k]), None)
    if twice is not None:
        raise UsageError("same-run", f"run {twice.name} is named twice; see `joulelab ls`")
    return ReportTarget(paths)


def _find_study(word: str, studies: Path, twins: tuple[str, ...]) -> ReportTarget | None:
    """Return the study that a word names by file, folder or name; None if it names no study."""
    from joulelab.study.folder import VALID_NAME, open_study

    if word.endswith(".toml") and not Path(word).is_dir():
        from joulelab.cli.study import open_named_study, read_named_study

        found = read_named_study(Path(word), twins, studies)
        return ReportTarget(study=open_named_study(found, studies, twins), plan=found.plan)
    if twins:
        return None
    named = studies / word if VALID_NAME.fullmatch(word) else None
    folder = next((f for f in (Path(word), named) if f is not None and _is_study(f)), None)
    return None if folder is None else ReportTarget(study=open_study(folder))


def _is_study(folder: Path) -> bool:
    from joulelab.study.folder import FILE

    try:
        return (folder / FILE).is_file()
    except OSError:  # not a possible file name
        return False


def _write_report(target: ReportTarget, to: str) -> str:
    with show_progress(f"making the report of {target.name[:MAX_NAME_LENGTH]}"):
        report = _make_report(target)
        if to == "md":
            return f"{OWN_MARKS['md']}\n{report.write_markdown()}"
        from joulelab.report.page.document import write_offline_page

        return write_offline_page(report.make_page())


def _make_report(target: ReportTarget) -> Report:
    if target.study is not None:
        from joulelab.report.page.study_page import report_study

        return report_study(target.study, target.plan, site=load_current_site())
    if len(target.runs) == 1:
        from joulelab.report.page.run_page import open_run_report

        return open_run_report(target.runs[0], handle=name_run(target.runs[0]), site=load_current_site())
    from joulelab.report.page.comparison_page import open_comparison_report

    return open_comparison_report(target.runs, site=load_current_site())


def _choose_file(target: ReportTarget, to: str, output: Path | None) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.name)[:MAX_NAME_LENGTH]
    usual = f"joulelab-report-{name}.{to}"
    if output is None:
        return Path(usual)
    return output / usual if output.is_dir() else output


def _describe_target(target: ReportTarget) -> dict[str, Any]:
    if target.study is not None:
        return {"study": target.study.name, "folder": str(target.study.folder)}
    return {"runs": [run.resolve().name for run in target.runs], "folders": [str(run) for run in target.runs]}


def _open_browser(file: Path) -> None:
    import webbrowser

    if not webbrowser.open(file.absolute().as_uri()):
        print_notice(f"cannot open a browser; open {file} yourself")
