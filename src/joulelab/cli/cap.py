"""Set power caps for one command, and leave the machine as it was found: `joulelab cap 170 -- CMD`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import UsageError, add_run_options
from joulelab.cli.run import execute
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from joulelab.control.client import CapOutcome, CapRequest, CapStatus
    from joulelab.run.run_caps import CapValue
    from joulelab.run.spawn import Spawned

VERBS = ("status", "restore")


class Split(click.Command):
    """Keep what stands after `--` apart: it is a command of its own, with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`; the rest is the command."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def value(text: str, where: str) -> CapValue:
    """Return a cap with its unit: `170` and `170W` in W, `65%` and `default` as a share of the default."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(W|w|%|)", text.strip())
    if text.strip() == "default":
        return 1.0, "share"
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"{text!r} is no cap", where=where, next="write it as 170, 170W, 65% or default", code="config.cap"
        )
    return (float(match[1]) / 100, "share") if match[2] == "%" else (float(match[1]), "W")


def clock(text: str) -> CapValue:
    """Return a clock in Hz: `1200`, `1200MHz`, `1.2GHz`."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(mhz|ghz|)", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"{text!r} is no clock", where="--clock", next="write it as 1200, 1200MHz or 1.2GHz", code="config.clock"
        )
    return float(match[1]) * (1e9 if match[2] == "ghz" else 1e6), "Hz"


@click.command("cap", cls=Split)
@click.option(
    "--gpu", "which", metavar="0,1", help="Cap these GPUs: numbers, UUIDs or `all`.  [default: those visible]"
)
@click.option("--cpu", "cpu_cap", metavar="W", help="Cap every CPU package too (or alone).")
@click.option(
    "--clock", "clock_text", metavar="MHZ", help="Lock the GPUs' clocks at most here, where a cap is refused."
)
@add_run_options
@click.argument("words", nargs=-1, metavar="[WATTS|PERCENT|status|restore] [-- CMD...]")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    which: str | None,
    cpu_cap: str | None,
    clock_text: str | None,
    **given: Any,
) -> None:
    """Run a command under power caps, measured; afterwards the caps are what they were before.

    joulelab cap 170 -- python train.py

    joulelab cap --gpu 0,1 170 --cpu 120 -- python train.py

    `cap status` shows every device, its cap, its range and who holds it; `cap restore` puts back what was left behind.
    """
    workload: tuple[str, ...] = ctx.meta["command"]
    early: list[Spawned] | None = ctx.obj
    if words[:1] and words[0] in VERBS:
        if len(words) > 1 or workload:
            raise UsageError("too-many-words", f"`joulelab cap {words[0]}` takes nothing else")
        _status(given["as_json"]) if words[0] == "status" else _restore(given["as_json"])
        return
    if not workload:
        raise UsageError("no-command", "there is no command; type `joulelab cap 170 -- CMD`")
    if len(words) > 1:
        raise UsageError("too-many-words", f"{words[1]!r} is one value too many; the command stands after `--`")
    if not words and cpu_cap is None and clock_text is None:
        raise UsageError("no-cap", "there is no cap; type `joulelab cap 170 -- CMD`")
    if not words and clock_text is None and which is not None:
        raise UsageError(
            "no-cap", "--gpu names GPUs, but there is no cap for them; type `joulelab cap --gpu 0 170 -- CMD`"
        )
    from joulelab.control.leftovers import restore_at_start

    restore_at_start(os.environ, lambda said: click.echo(f"joulelab: {said}", err=True))
    wanted = _wishes(words[0] if words else None, which, cpu_cap, clock_text)
    execute(workload, early, caps=wanted, **given)


def _wishes(watts: str | None, which: str | None, cpu_cap: str | None, clock_text: str | None) -> list[CapRequest]:
    """Return what to ask the keeper for. Raises ConfigError, Unavailable."""
    from joulelab.control.client import Caps
    from joulelab.run.run_caps import choose_cpus, choose_gpus, make_cap_requests

    asked = value(watts, "cap") if watts is not None else None
    locked = clock(clock_text) if clock_text is not None else None
    package = value(cpu_cap, "--cpu") if cpu_cap is not None else None
    with Caps(os.environ) as caps:
        status = caps.status()
    scopes = choose_gpus(status, os.environ, which) if asked or locked else []
    for scope, reason in status.missing if scopes and which is None else ():
        if scope.startswith("gpu:") and scope not in scopes:
            click.echo(f"joulelab: {scope} is not capped: {reason}", err=True)
    wanted = make_cap_requests(scopes, asked) if asked else []
    wanted += make_cap_requests(scopes, locked) if locked else []
    return wanted + (make_cap_requests(choose_cpus(status), package) if package else [])


def _status(as_json: bool) -> None:
    from joulelab.control.client import Caps

    with Caps(os.environ) as caps:
        status = caps.status()
    if as_json:
        print_json(status.to_json())
    else:
        _print_status(status)


def _print_status(status: CapStatus) -> None:
    import sys

    from joulelab.report.caps import print_caps
    from joulelab.report.console import make_console

    print_caps(make_console(sys.stdout), status)


def _restore(as_json: bool) -> None:
    """Put back what was left behind; exit with 1 where something could not be."""
    from joulelab.control.client import restore_leftovers

    done = restore_leftovers(os.environ)
    if as_json:
        print_json([each.to_json() for each in done])
    else:
        for each in done:
            click.echo(_said(each))
        if not done:
            click.echo("nothing was left behind")
    if any(each.outcome == "failed" for each in done):
        click.get_current_context().exit(1)


def _said(released: CapOutcome) -> str:
    return released.message or f"{released.scope}: {released.outcome}"
