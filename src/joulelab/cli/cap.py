"""Measure a command under power caps, then restore the original caps: `joulelab cap 170 -- CMD`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import WORDS_AFTER_DASHES, SplitCommand, UsageError, add_run_options, format_examples
from joulelab.cli.run import run_and_exit
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from joulelab.control.client import CapRequest
    from joulelab.run.run_caps import CapValue

VERBS = ("status", "restore")
EXAMPLES = format_examples(
    "joulelab cap 170 -- python train.py",
    "joulelab cap --gpu 0,1 170 --cpu 120 -- python train.py",
    "joulelab cap status",
    "joulelab cap restore",
)


def read_cap(text: str, where: str) -> CapValue:
    """Return a cap with its unit: `170` and `170W` in W, `65%` and `default` as a share of the default."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(W|w|%|)", text.strip())
    if text.strip() == "default":
        return 1.0, "share"
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"{text!r} is not a power cap", where=where, next="write it as 170, 170W, 65% or default", code="config.cap"
        )
    return (float(match[1]) / 100, "share") if match[2] == "%" else (float(match[1]), "W")


def read_clock(text: str) -> CapValue:
    """Return a clock in Hz: `1200`, `1200MHz`, `1.2GHz`."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(mhz|ghz|)", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"{text!r} is not a clock", where="--clock", next="write it as 1200, 1200MHz or 1.2GHz", code="config.clock"
        )
    return float(match[1]) * (1e9 if match[2] == "ghz" else 1e6), "Hz"


@click.command("cap", cls=SplitCommand, epilog=EXAMPLES)
@click.option("--gpu", "which", metavar="0,1", help="GPUs to cap: numbers, UUIDs or `all`.  [default: visible GPUs]")
@click.option("--cpu", "cpu_cap", metavar="W", help="Cap each CPU package, with or without GPUs.")
@click.option(
    "--clock", "clock_text", metavar="MHZ", help="Limit the clocks of the GPUs; use it if a GPU refuses power caps."
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
    """Measure a command under power caps, then restore the caps.

    WATTS, or PERCENT of the default cap, applies to each GPU. `cap status` lists all devices with their caps, ranges
    and users. `cap restore` restores caps that a crashed program left behind.
    """
    workload: tuple[str, ...] = ctx.meta[WORDS_AFTER_DASHES]
    if words[:1] and words[0] in VERBS:
        if len(words) > 1 or workload:
            raise UsageError("too-many-words", f"`joulelab cap {words[0]}` takes no further arguments")
        _print_status(given["as_json"]) if words[0] == "status" else _restore_caps(given["as_json"])
        return
    if not workload:
        raise UsageError("no-command", "no command to run; type `joulelab cap 170 -- CMD`")
    if len(words) > 1:
        raise UsageError("too-many-words", f"unexpected argument {words[1]!r}; write the command after `--`")
    if not words and cpu_cap is None and clock_text is None:
        raise UsageError("no-cap", "no cap is given; type `joulelab cap 170 -- CMD`")
    if not words and clock_text is None and which is not None:
        raise UsageError("no-cap", "--gpu needs a cap for these GPUs; type `joulelab cap --gpu 0 170 -- CMD`")
    from joulelab.control.leftovers import restore_at_start

    restore_at_start(os.environ, print_notice)
    requests = _make_requests(words[0] if words else None, which, cpu_cap, clock_text)
    run_and_exit(workload, caps=requests, **given)


def _make_requests(
    watts: str | None, which: str | None, cpu_cap: str | None, clock_text: str | None
) -> list[CapRequest]:
    """Return the requests to the keeper. Raises ConfigError, Unavailable."""
    from joulelab.control.client import Caps
    from joulelab.run.run_caps import choose_cpus, choose_gpus, make_cap_requests

    cap = read_cap(watts, "cap") if watts is not None else None
    clock = read_clock(clock_text) if clock_text is not None else None
    package = read_cap(cpu_cap, "--cpu") if cpu_cap is not None else None
    with Caps(os.environ) as caps:
        status = caps.status()
    scopes = choose_gpus(status, os.environ, which) if cap or clock else []
    for scope, reason in status.missing if scopes and which is None else ():
        if scope.startswith("gpu:") and scope not in scopes:
            print_notice(f"{scope} is not capped: {reason}")
    requests = make_cap_requests(scopes, cap) if cap else []
    requests += make_cap_requests(scopes, clock) if clock else []
    return requests + (make_cap_requests(choose_cpus(status), package) if package else [])


def _print_status(as_json: bool) -> None:
    from joulelab.control.client import Caps

    with Caps(os.environ) as caps:
        status = caps.status()
    if as_json:
        print_json(status.to_json())
        return
    from joulelab.cli.output import print_blocks
    from joulelab.report.cap_tables import lay_out_cap_status

    print_blocks(lay_out_cap_status(status))


def _restore_caps(as_json: bool) -> None:
    """Restore caps that were left behind; exit with 1 if one cannot be restored."""
    from joulelab.control.client import restore_leftovers

    done = restore_leftovers(os.environ)
    if as_json:
        print_json([each.to_json() for each in done])
    else:
        for each in done:
            click.echo(each.message or f"{each.scope}: {each.outcome}")
        if not done:
            click.echo("no caps were left behind")
    if any(each.outcome == "failed" for each in done):
        click.get_current_context().exit(1)
