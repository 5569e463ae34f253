"""Mark phases, work and facts from a shell script: `joulelab mark NAME`. Imports little: scripts call it often."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_notice
from joulelab.cli.parameters import (
    WORDS_AFTER_DASHES,
    Amount,
    SplitCommand,
    UsageError,
    add_json_option,
    format_examples,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import FrameType
    from typing import Any, NoReturn

NOT_MARKED = "nothing is marked: cannot write to {folder}; see df -h"  # a script must not fail by its marks


EXAMPLES = format_examples(
    "joulelab mark load",
    "joulelab mark epoch --n 3 --work samples=60000",
    "joulelab mark train -- python train.py",
    "joulelab mark --end --fact accuracy=0.91",
)


class Fact(click.ParamType[tuple[str, str | float | bool]]):
    """Take `data=cifar-10` or `accuracy=0.91`: a name, and text, a number, true or false.

    Numbers that would print differently stay text: `ver=007`, `commit=123e4567`.
    """

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | float | bool]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        key, _, text = (part.strip() for part in str(value).partition("="))
        if not key or not text:
            self.fail(f"{value!r} is not a name and a value; write it as data=cifar-10", param, ctx)
        if text in ("true", "false"):
            return key, text == "true"
        for number in (int, float):
            with contextlib.suppress(ValueError):
                found = number(text)
                if str(found) == text and abs(found) < math.inf:
                    return key, found
        return key, text


@click.command("mark", cls=SplitCommand, epilog=EXAMPLES)
@click.argument("name", required=False, metavar="[NAME] [-- CMD...]")
@click.option("--n", "number", type=int, metavar="N", help="Number of the phase: epoch --n 3.")
@click.option("--end", is_flag=True, help="End the current phase without a next one.")
@click.option("--work", multiple=True, type=Amount(), help="Report work done so far: samples=64; repeatable.")
@click.option("--fact", multiple=True, type=Fact(), help="Record a fact of the run: data=cifar-10; repeatable.")
@click.option("-v", "--verbose", is_flag=True, help="Print a message if nothing is recorded.")
@add_json_option("Print the mark as JSON on standard error.")
@click.pass_context
def command(
    context: click.Context,
    name: str | None,
    number: int | None,
    end: bool,
    work: tuple[tuple[str, float], ...],
    fact: tuple[tuple[str, str | float | bool], ...],
    verbose: bool,
    as_json: bool,
) -> None:
    """Mark a phase, work or a fact from within a measured script.

    `mark NAME` ends the current phase and starts the next one; `mark NAME -- CMD` makes one command a phase and returns
    its exit code. A fact belongs to the whole run; its last value counts. Outside a recorded run, nothing is marked.
    """
    words = list(context.meta[WORDS_AFTER_DASHES])
    if end and (name or words):
        raise UsageError("exclusive", "--end takes no name; `joulelab mark NAME` ends the current phase, too")
    if (words and not name) or not (name or end or work or fact):
        raise UsageError("no-name", "no name to mark; type `joulelab mark NAME`")
    folder = _find_folder(os.environ)
    if folder is None and verbose:
        print_notice("nothing is recorded, so nothing is marked; joulelab run -- CMD")
    if as_json:
        import json

        marked = {"recorded": folder is not None, "name": name, "n": number, "end": end, "work": dict(work)}
        click.echo(json.dumps(marked | {"facts": dict(fact)}), err=True)
    amounts: dict[str, float] = {}
    for key, value in work:
        amounts[key] = amounts.get(key, 0.0) + value
    if folder is not None and fact:
        _write_facts(folder, dict(fact))
    if words:
        _run_phase(folder, str(name), number, amounts, words)
    if folder is not None:
        _write_marks(folder, name, number, amounts, end=end)


def _find_folder(environ: Mapping[str, str]) -> Path | None:
    from joulelab.run.run_options import find_marks_folder

    folder = find_marks_folder(environ)
    return folder if folder is not None and folder.is_dir() else None


def _write_facts(folder: Path, facts: Mapping[str, object]) -> None:
    from joulelab.core.marks import read_local_rank, write_shell_fact

    try:
        if read_local_rank(os.environ) == 0:
            write_shell_fact(folder, facts)
    except OSError:
        print_notice(NOT_MARKED.format(folder=folder))


def _write_marks(
    folder: Path, name: str | None, number: int | None, amounts: Mapping[str, float], *, end: bool
) -> None:
    """Report work, which belongs to the current phase, then start the next phase."""
    from joulelab.core.marks import read_local_rank, write_shell_mark, write_shell_work

    rank = read_local_rank(os.environ)
    try:
        if amounts:
            write_shell_work(folder, amounts, rank=rank)
        if (name or end) and rank == 0:
            write_shell_mark(folder, name, number)
    except OSError:
        print_notice(NOT_MARKED.format(folder=folder))


def _run_phase(
    folder: Path | None, name: str, number: int | None, amounts: Mapping[str, float], words: list[str]
) -> NoReturn:
    """Run a command as a phase, and exit with its code."""
    from joulelab.core.errors import WorkloadError
    from joulelab.core.marks import MarkWriter, read_local_rank
    from joulelab.run.workload_process import exit_like_workload

    writer = MarkWriter(folder, rank=read_local_rank(os.environ)) if folder is not None else None
    identity = writer.begin(name, number) if writer else None
    try:
        code = _run_command(words)
    except WorkloadError as error:
        print_notice(str(error))
        code = error.exit_code
    if writer:
        if amounts and code == 0:
            writer.work(amounts)
        writer.end(identity)
        writer.close()
    exit_like_workload(code if code >= 0 else None, -code if code < 0 else None)


def _run_command(words: list[str]) -> int:
    """Run a command and return its exit code; signals of other processes are passed on to it. Raises WorkloadError."""
    from joulelab.run import workload_process

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    passed_on = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    from_terminal = (signal.SIGINT, signal.SIGQUIT)  # the command gets them too
    # Blocked until we know whom to pass them to: one that came in between would end us, and leave the command behind.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*passed_on, *from_terminal])
    try:
        pid = workload_process.start_workload(words, os.environ, mask)
        for number in passed_on:
            signal.signal(number, pass_on)
        for number in from_terminal:
            signal.signal(number, lambda *_: None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    sys.stdout.flush()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
