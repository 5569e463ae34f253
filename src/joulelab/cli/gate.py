"""Check in CI that a command needs no more energy than a baseline: `joulelab gate BASELINE RUN`, `... -- CMD`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import load_current_site, print_blocks, print_json, print_notice, show_progress
from joulelab.cli.parameters import (
    METER_OPTIONS,
    WORDS_AFTER_DASHES,
    Precision,
    SplitCommand,
    UsageError,
    add_options,
    format_examples,
    json_option,
    runs_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.result import Result
    from joulelab.report.gate_output import GateReport
    from joulelab.report.group_comparison import RunGroup
    from joulelab.site.footprint import Site

MOST_RUNS = 10  # of a command, unless --at-most says otherwise
STANDARD_ERROR = 2  # its descriptor


@click.command(
    "gate",
    cls=SplitCommand,
    epilog=format_examples(
        "joulelab gate name=main last --limit 5%",
        "joulelab gate energy-baseline/ --limit 5% -- python train.py --steps 100",
        "joulelab gate branch=main branch=mine --json",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="BASELINE [RUN]... [-- CMD...]")
@click.option("--limit", type=Precision(), default="5%", show_default=True, help="Smallest rise that must not pass.")
@click.option(
    "--at-most",
    type=click.IntRange(min=3),
    default=MOST_RUNS,
    show_default=True,
    metavar="N",
    help="With CMD: run it until the answer is clear, at most N times.",
)
@add_options(METER_OPTIONS)
@json_option
@runs_option
def command(words: tuple[str, ...], limit: float, at_most: int, as_json: bool, runs: Path, **given: Any) -> None:
    """Fail if energy is significantly above a baseline, for CI.

    Exit code 0: not above the baseline, or surely by less than the limit. 1: significantly above. 2: cannot decide, or
    an error. BASELINE and RUN are runs as for `joulelab compare`; NAME=VALUE and a folder of runs are several. With CMD
    the command is measured again and again until the answer is clear; all looks together are wrong in at most 5 %.
    """
    after = click.get_current_context().meta[WORDS_AFTER_DASHES]
    if bool(after) == (len(words) > 1):
        what = "name the runs, or a command after --, not both" if after else "name a run, or a command after --"
        again = f"joulelab gate {shlex.quote(words[0])} -- {shlex.join(after) or 'CMD'}"
        raise UsageError("gate-runs", f"{what}: {again}")
    site = load_current_site()
    baseline = _load_group("baseline", words[:1], runs, site)
    if after:
        measure = partial(_measure_command, after, runs, _list_options(given), as_json=as_json)
        found = _repeat_command(after, baseline, limit, at_most, site, measure)
    else:
        found = _judge_runs(baseline, words[1:], limit, runs, site)
    found = replace(found, commands=_make_commands(words, found, runs))
    if as_json:
        print_json(found.to_json())
    else:
        from joulelab.report.gate_output import lay_out_gate

        print_blocks(lay_out_gate(found))
    click.get_current_context().exit(found.exit_code)


def _load_group(letter: str, words: Sequence[str], runs: Path, site: Site | None) -> RunGroup:
    """Read the runs that words choose; of those that a label or a folder chose, failed runs are left out."""
    from joulelab.cli.compare import find_group, load_group

    paths = find_group(runs, words)
    with show_progress(f"reading {len(paths)} runs"):
        return load_group(letter, words, paths, site)


def _judge_runs(baseline: RunGroup, words: Sequence[str], limit: float, runs: Path, site: Site | None) -> GateReport:
    from joulelab.analysis.cell_comparison import INTERVAL_LEVEL
    from joulelab.report.gate_output import judge_groups

    current = _load_group("new", words, runs, site)
    both = {run.run for run in baseline.runs} & {run.run for run in current.runs}
    if both:
        raise UsageError("same-run", f"run {min(both)} is in the baseline, too; name each run once")
    return judge_groups(baseline, current, limit, INTERVAL_LEVEL)


def _repeat_command(
    words: Sequence[str],
    baseline: RunGroup,
    limit: float,
    at_most: int,
    site: Site | None,
    measure: Callable[[], Result],
) -> GateReport:
    """Measure a command until the answer is clear. Raises JoulelabError."""
    from joulelab.analysis.energy_gate import FEWEST_REPEATS, find_look_level
    from joulelab.report.gate_output import judge_groups, word_progress
    from joulelab.report.group_comparison import RunGroup

    results: list[Result] = []
    while True:
        results.append(measure().with_site(site))
        current = RunGroup("new", " ".join(words), tuple(results))
        found = judge_groups(baseline, current, limit, find_look_level(len(results), at_most))
        print_notice(word_progress(found, at_most))
        is_early = len(results) < FEWEST_REPEATS and found.samples[1] is not None and not any(found.unlike)
        if not is_early and (len(results) >= at_most or not found.verdict.needs_repeats):
            return found


def _measure_command(words: Sequence[str], runs: Path, options: Sequence[str], *, as_json: bool) -> Result:
    """Run a command by `joulelab run` and return its result; with JSON, its output goes to standard error.

    Raises WorkloadError if it failed, RecorderError if it was not recorded.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.core.errors import RecorderError, WorkloadError

    with tempfile.TemporaryDirectory(prefix="joulelab-gate-") as folder:
        file = Path(folder) / "result.json"
        own = [sys.executable, "-m", "joulelab", "run", "-q", "--runs", str(runs), "-o", str(file), *options]
        output = STANDARD_ERROR if as_json else None  # standard output holds nothing but the JSON
        code = subprocess.run([*own, "--", *words], check=False, env=os.environ, stdout=output).returncode
        path = json.loads(file.read_text())["folder"] if file.exists() else None
    if code:
        ending = f"signal {-code}" if code < 0 else f"exit {code}"
        what = f"the command failed ({ending}), so its energy is not judged"
        raise WorkloadError(what, exit_code=code, code="workload.failed")
    if path is None:
        raise RecorderError("the run was not recorded, so its energy is not judged", code="recorder.not-recorded")
    return load_result(Path(path))


def _make_commands(words: Sequence[str], found: GateReport, runs: Path) -> dict[str, str]:
    """Return the arguments of next steps: `compared` for `joulelab compare`, `again` for `joulelab gate`."""
    from joulelab.store.redact import HIDDEN

    typed = click.get_current_context().get_parameter_source("runs") is click.core.ParameterSource.COMMANDLINE
    folder = ["--runs", str(runs)] if typed else []
    current = words[1:] or [run.run for run in found.current.runs]
    made = {"compared": shlex.join([*folder, words[0], "vs", *current])}
    last = found.current.runs[-1]
    if last.command and last.outcome == "exit" and not any(HIDDEN in word for word in last.command):
        made["again"] = shlex.join([*folder, words[0], "--", *last.command])
    return made


def _list_options(given: dict[str, Any]) -> list[str]:
    """Return the options about meters as words for `joulelab run`."""
    words = [word for name in given["meters"] for word in ("--meter", name)]
    words += [word for name in given["without"] for word in ("--no-meter", name)]
    words += ["--config", str(given["config"])] if given["config"] is not None else []
    words += ["--estimate"] if given["estimate"] else []
    return words + (["--rated-cpu", str(given["rated_cpu"])] if given["rated_cpu"] is not None else [])
