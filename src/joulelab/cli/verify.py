"""Verify that runs are as they were recorded: `joulelab verify RUN...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_blocks, print_json, print_notice, show_progress
from joulelab.cli.parameters import format_examples, json_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.report.terminal import TextBlock
    from joulelab.store.verification import Verification


@click.command("verify", epilog=format_examples("joulelab verify last", "joulelab verify joulelab-runs/* --json"))
@click.argument("run", nargs=-1, required=True)
@json_option
@runs_option
@click.pass_context
def command(context: click.Context, run: tuple[str, ...], as_json: bool, runs: Path) -> None:
    """Check that the files of runs are unchanged.

    Compares size and SHA-256 of all files with the run's manifest. The exit code is 1 if a file is damaged or missing.
    Runs of joulelab 0.1.1 and before have no manifest: their files are read, but changes cannot be found, so they are
    `not verifiable`.
    """
    from joulelab.core.errors import JoulelabError
    from joulelab.store.verification import DAMAGED, verify_run

    found, errors = [], []
    with show_progress(f"verifying {len(run)} runs", len(run)) as step:
        for word in run:
            try:
                found.append(verify_run(runs, word))
            except JoulelabError as error:  # the other runs are verified all the same
                errors.append(error)
            step()
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        for each in found:
            print_blocks(_lay_out(each))
    for problem in errors[:-1]:
        print_notice(str(problem))
    if errors:
        raise errors[-1]
    if any(each.status == DAMAGED for each in found):
        context.exit(1)


def _lay_out(found: Verification) -> list[TextBlock]:
    from joulelab.report.format import format_bytes
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import TextLine
    from joulelab.store.verification import DAMAGED, UNKNOWN, WHOLE

    whole = sum(f.status == WHOLE for f in found.files)
    details = {
        WHOLE: f", {whole} files",
        DAMAGED: f", {whole} of {len(found.files)} files are whole",
        UNKNOWN: ": it has no manifest (not sealed yet, or sealed by joulelab 0.1.1 or before)",
    }
    blocks: list[TextBlock] = [
        TextLine(f"{found.folder.name}  {found.status}{details[found.status]}", is_wrapped=False)
    ]
    rows = [
        (f.name, format_bytes(f.record.size), "" if f.record.rows is None else f.record.rows, f.status)
        for f in found.files
    ]
    if rows:
        blocks.append(make_table(["file", "size", "rows", "status"], rows, left=(0, 3)))
    for name, text in found.problems:
        line = f"damaged  {name}: {text}" if found.status == DAMAGED else f"note  {text}"
        blocks.append(TextLine(line, is_wrapped=False))
    if found.status == DAMAGED:
        blocks.append(TextLine("next     copy the run folder again from its origin"))
    return blocks
