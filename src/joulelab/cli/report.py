"""Make a page of a run, of several runs or of a study, to send to a colleague: `joulelab report [TARGET...]`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import check_overwrite, print_json, print_notice, write_file
from joulelab.cli.parameters import UsageError, json_option, runs_option, studies_option
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.study.folder import Plan, Study

OWN = {"html": '<meta name="generator" content="joulelab">', "md": "<!-- made by joulelab report -->"}
MOST_NAMED = 2  # runs whose ids are in the name of a file
MOST_RUNS = 26  # that one page sets beside each other
MOST_OF_NAME = 80  # letters of a file's name that are made of ids and names


@dataclass(frozen=True, slots=True)
class Target:
    """Hold what a report is of: runs by their folders, or a study, with its plan where its file was named."""

    runs: tuple[Path, ...] = ()
    study: Study | None = None
    plan: Plan | None = None

    @property
    def kind(self) -> str:
        """Return what kind of report it is."""
        if self.study is not None:
            return "study"
        return {1: "run", 2: "comparison"}.get(len(self.runs), "runs")

    @property
    def name(self) -> str:
        """Return what the report's file is named after."""
        if self.study is not None:
            return self.study.name
        ids = [run.resolve().name for run in self.runs]
        more = len(ids) - MOST_NAMED
        return "-".join([*ids[:MOST_NAMED], *([f"and-{more}-more"] if more > 0 else [])])


@click.command("report")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--to", type=click.Choice(["html", "md"]), default="html", show_default=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it; `-` is standard output.  [default: joulelab-report-NAME.html]",
)
@click.option("--force", is_flag=True, help="Write over a file that is no report of joulelab's.")
@click.option(
    "--twin", "twins", multiple=True, metavar="NODE", help="Of a study file: its study on this twin, as it was run."
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
    """Make a page of a run, of several runs or of a study: one file that works offline.

    TARGET is a run, named as for `joulelab show` (the last one unless named), or a study: its name, folder or file.
    Two runs are compared, more are set beside each other.
    """
    to_stdout = str(output) == "-"
    if to_stdout and (opens or as_json):
        raise UsageError("exclusive", f"-o - cannot be used with {'--open' if opens else '--json'}")
    target = find_target(targets or ("last",), runs, studies, twins)
    file = None if to_stdout else _file(target, to, output)
    if file is not None:
        check_overwrite(file, OWN[to].encode(), what="report", force=force)
    text = _made(target, to)
    if file is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_file(file, text.encode(), what="report")
    if as_json:
        told = {"report": str(file), "kind": target.kind, "format": to, "bytes": len(text.encode())}
        print_json(told | _told(target))
    else:
        click.echo(str(file))
    if opens:
        _open(file)


def find_target(words: Sequence[str], runs: Path, studies: Path, twins: Sequence[str] = ()) -> Target:
    """Find what a report shall be of; a study's name comes before a run's. Raises ConfigError, JoulelabError."""
    from joulelab.store.folder import find_run

    if len(words) == 1:
        found = _study(words[0], studies, tuple(twins))
        if found is not None:
            return found
    if twins:
        raise ConfigError(
            "only a study file has twins to choose", where="--twin", next="leave it out", code="config.no-study"
        )
    if len(words) > MOST_RUNS:
        raise ConfigError(
            f"{len(words)} runs are too many for one page",
            next=f"name at most {MOST_RUNS}",
            code="config.too-many-runs",
        )
    for word in words[1:] and words:
        if _is_study(Path(word)) or word.endswith(".toml"):
            raise ConfigError(
                "a study is not compared with others",
                where=word,
                next=f"joulelab report {word}",
                code="config.not-comparable",
            )
    paths = tuple(find_run(runs, word) for word in words)
    seen = [path.resolve() for path in paths]
    twice = next((path for k, path in enumerate(seen) if path in seen[:k]), None)
    if twice is not None:
        raise UsageError("same-run", f"run {twice.name} is named twice; see `joulelab ls`")
    return Target(paths)


def _study(word: str, studies: Path, twins: tuple[str, ...]) -> Target | None:
    """Return the study that a word names: by its file, its folder or its name; None where it names none."""
    from joulelab.study.folder import NAME, open_study

    if word.endswith(".toml") and not Path(word).is_dir():
        from joulelab.cli.study import open_named_study, read_named_study

        found = read_named_study(Path(word), twins, studies)
        return Target(study=open_named_study(found, studies, twins), plan=found.plan)
    if twins:
        return None
    named = studies / word if NAME.fullmatch(word) else None
    folder = next((f for f in (Path(word), named) if f is not None and _is_study(f)), None)
    return None if folder is None else Target(study=open_study(folder))


def _is_study(folder: Path) -> bool:
    from joulelab.study.folder import FILE

    try:
        return (folder / FILE).is_file()
    except OSError:  # a name that no file can have
        return False


def _made(target: Target, to: str) -> str:
    """Return the report as text, with a bar where that takes long."""
    from joulelab.cli.output import show_progress

    with show_progress(f"making the report of {target.name[:MOST_OF_NAME]}"):
        return _markdown(target) if to == "md" else _html(target)


def _html(target: Target) -> str:
    from joulelab.report.page import make
    from joulelab.report.page.document import offline

    if target.study is not None:
        return offline(make.report_of_study(target.study, target.plan).page())
    if len(target.runs) == 1:
        return offline(make.page_of_run(target.runs[0], handle=_handle(target.runs[0])))
    return offline(make.page_of_runs(target.runs))


def _markdown(target: Target) -> str:
    from joulelab.report.page import make

    if target.study is not None:
        text = make.report_of_study(target.study, target.plan).markdown()
    elif len(target.runs) == 1:
        text = make.markdown_of_run(target.runs[0], handle=_handle(target.runs[0]))
    else:
        text = make.report_of_runs(target.runs).markdown()
    return f"{OWN['md']}\n{text}"


def _handle(run: Path) -> str:
    from joulelab.cli.parameters import name_run

    return name_run(run)


def _file(target: Target, to: str, output: Path | None) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.name)[:MOST_OF_NAME]
    usual = f"joulelab-report-{name}.{to}"
    if output is None:
        return Path(usual)
    return output / usual if output.is_dir() else output


def _told(target: Target) -> dict[str, Any]:
    if target.study is not None:
        return {"study": target.study.name, "folder": str(target.study.folder)}
    return {"runs": [run.resolve().name for run in target.runs], "folders": [str(run) for run in target.runs]}


def _open(file: Path) -> None:
    import webbrowser

    if not webbrowser.open(file.absolute().as_uri()):
        print_notice(f"no browser could be opened; open {file} yourself")
