"""Mark phases, work and facts from a shell script: `joulelab mark NAME`. Starts often, so it imports little."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from joulelab.cli.parameters import Amount, UsageError, add_json_option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import FrameType
    from typing import Any, NoReturn

WORDS = "joulelab.words"
NOT_MARKED = "not marked (cannot write to {folder}); df -h"  # and no more: a script must not fail by its marks


class Fact(click.ParamType[tuple[str, str | float | bool]]):
    """Take `data=cifar-10` or `accuracy=0.91`: a name, and text, a number, true or false.

    What would not be printed as it was given stays text: `ver=007`, `commit=123e4567`.
    """

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | float | bool]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        key, _, told = (part.strip() for part in str(value).partition("="))
        if not key or not told:
            self.fail(f"{value!r} is no fact; write it as data=cifar-10", param, ctx)
        if told in ("true", "false"):
            return key, told == "true"
        for number in (int, float):
            with contextlib.suppress(ValueError):
                found = number(told)
                if str(found) == told and abs(found) < math.inf:
                    return key, found
        return key, told


class Mark(click.Command):
    """Keep what stands after `--` as the command to run, untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[WORDS] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command("mark", cls=Mark)
@click.argument("name", required=False)
@click.option("--n", "number", type=int, metavar="N", help="Number of the phase: `epoch --n 3`.")
@click.option("--end", is_flag=True, help="Only end the phase that goes on.")
@click.option("--work", multiple=True, type=Amount(), help="Report work done up to now, such as samples=64.")
@click.option("--fact", multiple=True, type=Fact(), help="Tell a fact of the run, such as data=cifar-10.")
@click.option("-v", "--verbose", is_flag=True, help="Say so where nothing is recorded.")
@add_json_option("Print what was marked as JSON, on standard error.")
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
    """Mark a phase or work done, from a script that is measured.

    `mark NAME` ends the phase before it and begins the next; `mark NAME -- CMD` makes a phase of one command and
    returns its exit code. Facts are of the whole run, the last value of each name. Outside a recorded run it marks
    nothing.
    """
    words: list[str] = context.meta.get(WORDS, [])
    if end and (name or words):
        raise UsageError("exclusive", "--end takes no name; `joulelab mark NAME` ends the phase before it anyway")
    if (words and not name) or not (name or end or work or fact):
        raise UsageError("no-name", "there is no name to mark; type `joulelab mark NAME`")
    folder = _folder(os.environ)
    if folder is None and verbose:
        _say("nothing is recorded here, so nothing is marked; joulelab run -- CMD records")
    if as_json:
        import json

        marked = {"recorded": folder is not None, "name": name, "n": number, "end": end, "work": dict(work)}
        click.echo(json.dumps(marked | {"facts": dict(fact)}), err=True)
    amounts: dict[str, float] = {}
    for key, value in work:
        amounts[key] = amounts.get(key, 0.0) + value
    if folder is not None and fact:
        _tell(folder, dict(fact))
    if words:
        _around(folder, str(name), number, amounts, words)
    if folder is not None:
        _switch(folder, name, number, amounts, end=end)


def _say(text: str) -> None:
    click.echo(f"joulelab: {text}", err=True)


def _folder(environ: Mapping[str, str]) -> Path | None:
    from joulelab.run.run_options import find_marks_folder

    folder = find_marks_folder(environ)
    return folder if folder is not None and folder.is_dir() else None


def _tell(folder: Path, facts: Mapping[str, object]) -> None:
    from joulelab.core.marks import read_local_rank, write_shell_fact

    try:
        if read_local_rank(os.environ) == 0:
            write_shell_fact(folder, facts)
    except OSError:
        _say(NOT_MARKED.format(folder=folder))


def _switch(folder: Path, name: str | None, number: int | None, amounts: Mapping[str, float], *, end: bool) -> None:
    """Report work, which belongs to the phase that goes on, and then begin the next."""
    from joulelab.core.marks import read_local_rank, write_shell_mark, write_shell_work

    rank = read_local_rank(os.environ)
    try:
        if amounts:
            write_shell_work(folder, amounts, rank=rank)
        if (name or end) and rank == 0:
            write_shell_mark(folder, name, number)
    except OSError:
        _say(NOT_MARKED.format(folder=folder))


def _around(
    folder: Path | None, name: str, number: int | None, amounts: Mapping[str, float], words: list[str]
) -> NoReturn:
    """Run a command as a phase, and end as it ends."""
    from joulelab.core.errors import WorkloadError
    from joulelab.core.marks import MarkWriter, read_local_rank
    from joulelab.run.workload_process import exit_like_workload, start_workload

    writer = MarkWriter(folder, rank=read_local_rank(os.environ)) if folder is not None else None
    identity = writer.begin(name, number) if writer else None
    try:
        code = _wait(start_workload(words, os.environ, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    except WorkloadError as error:
        _say(str(error))
        code = error.exit_code
    if writer:
        if amounts and code == 0:
            writer.work(amounts)
        writer.end(identity)
        writer.close()
    exit_like_workload(code if code >= 0 else None, -code if code < 0 else None)


def _wait(pid: int) -> int:
    """Wait for a process; the terminal signals it itself, other signals are passed on."""

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    sys.stdout.flush()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
