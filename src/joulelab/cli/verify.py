"""Verify that runs hold what was recorded: `joulelab verify RUN...`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import json_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.store.manifest import FileCheck
    from joulelab.store.run import Run

WHOLE, DAMAGED, UNKNOWN = "whole", "damaged", "not verifiable"


@dataclass(frozen=True, slots=True)
class Verification:
    """Hold what was found of one run: its status, the files that were compared, and problems as (file, words)."""

    folder: Path
    status: str
    files: tuple[FileCheck, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        files = [
            {"name": f.name, "status": f.status, "size": f.size, "recorded": f.record.size, "rows": f.record.rows}
            for f in self.files
        ]
        words = [f"{name}: {what}" for name, what in self.problems]
        return {
            "run": self.folder.name,
            "folder": str(self.folder),
            "status": self.status,
            "files": files,
            "problems": words,
        }


@click.command("verify")
@click.argument("run", nargs=-1, required=True)
@json_option
@runs_option
@click.pass_context
def command(context: click.Context, run: tuple[str, ...], as_json: bool, runs: Path) -> None:
    """Verify that the files of runs are those that were recorded.

    Sizes and SHA-256 of all files are compared with the run's manifest, which the seal wrote. The exit code is 1 where
    a file is damaged or missing. A run without a manifest, sealed by joulelab 0.1.1 or before, is read as a whole; what
    was changed and can still be read is not noticed there, so it is called not verifiable.
    """
    from joulelab.cli.output import show_progress
    from joulelab.core.errors import JoulelabError

    found, errors = [], []
    with show_progress(f"verifying {len(run)} runs", len(run)) as step:
        for word in run:
            try:
                found.append(verify_run(runs, word))
            except JoulelabError as error:  # one bad word costs no other run
                errors.append(error)
            step()
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        for each in found:
            _print(each)
    for problem in errors[:-1]:
        print_notice(str(problem))
    if errors:
        raise errors[-1]
    if any(each.status == DAMAGED for each in found):
        context.exit(1)


def verify_run(runs: Path, word: str) -> Verification:
    """Find a run and compare all its files with its manifest. Raises NotARun, NewerSchema."""
    from pathlib import Path

    from joulelab.core.errors import NewerSchema, NotARun, StoreError
    from joulelab.store.folder import find_run
    from joulelab.store.run import open_run

    folder = Path(word)
    try:
        folder = find_run(runs, word)
        with open_run(folder) as run:
            return _verify_opened(run)
    except (NotARun, NewerSchema):
        raise
    except StoreError as error:
        return Verification(folder, DAMAGED, problems=(("run.json", f"{error.what} ({error.why})"),))


def _verify_opened(run: Run) -> Verification:
    from joulelab.core.errors import StoreError
    from joulelab.store.folder import RunState

    checks, has_manifest = run.check_files()
    problems: dict[str, str] = {c.name: c.status for c in checks if c.status != WHOLE}
    try:
        if run.state is RunState.LIVE:
            return Verification(run.path, UNKNOWN, problems=(("end.json", "the run is still recording"),))
        for info in run.tables():
            for stream in info.streams if not has_manifest else ():  # what cannot be read is damaged, hash or not
                run.series(info, stream.name)
        run.marks()
        damage = {p.path.relative_to(run.path).as_posix(): p.what for p in run.damage(run.events())}
    except StoreError as error:  # end.json cannot be read
        damage = {"end.json": f"{error.what} ({error.why})"}
    problems |= {name: what.removeprefix(f"{run.path}/").removeprefix(f"{name} ") for name, what in damage.items()}
    status = DAMAGED if problems else WHOLE if has_manifest else UNKNOWN
    if status == UNKNOWN and not run.lists_files and any(line.get("mark") == "work" for line in run.marks()):
        problems["marks"] = "the run reports work; what was deleted from its marks cannot be noticed"
    return Verification(run.path, status, tuple(checks), tuple(problems.items()))


def _print(found: Verification) -> None:
    from joulelab.core.text import escape_unprintable
    from joulelab.report import format as fmt
    from joulelab.report.columns import print_columns

    whole = sum(f.status == WHOLE for f in found.files)
    counted = {WHOLE: f", {whole} files", DAMAGED: f", {whole} of {len(found.files)} files are whole"}
    counted[UNKNOWN] = ": it has no manifest (not sealed yet, or sealed by joulelab 0.1.1 or before)"
    click.echo(f"{escape_unprintable(found.folder.name)}  {found.status}{counted[found.status]}")
    rows = [
        [
            escape_unprintable(f.name),
            fmt.format_bytes(f.record.size),
            "" if f.record.rows is None else str(f.record.rows),
            f.status,
        ]
        for f in found.files
    ]
    if rows:
        print_columns(sys.stdout, ["file", "size", "rows", "status"], rows, left=(0, 3))
    for name, what in found.problems:
        click.echo(
            f"damaged  {escape_unprintable(name)}: {escape_unprintable(what)}"
            if found.status == DAMAGED
            else f"note  {what}"
        )
    if found.status == DAMAGED:
        click.echo("next     copy the run folder again from its origin")
