"""Calibrate meters against a better one: `joulelab calibrate`."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_blocks, print_json, print_notice, shorten_path, show_progress
from joulelab.cli.parameters import (
    METER_OPTIONS,
    Duration,
    format_examples,
    json_option,
    runs_option,
)
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.calibration.calibration_record import FittedRun
    from joulelab.calibration.staircase import StaircasePlan

DEVICES = re.compile(r"(\w+(?:\.\w+)?)(?::(\d+)(?:-(\d+))?)?")
MOST_DEVICES = 64
SLOW_STEP_S = 600.0  # steps that would take longer are not begun without --step


def parse_devices(text: str) -> list[str]:
    """Return scopes from `gpu:0-7`, `gpu:0,gpu:3` or `node.dc`. Raises ConfigError."""
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        match = DEVICES.fullmatch(part)
        if match is None:
            what = f"{part!r} does not name devices"
            raise ConfigError(what, where="--device", next="write them as gpu:0 or gpu:0-7", code="config.devices")
        family, first, last = match.groups()
        numbers = range(int(first), int(last or first) + 1) if first is not None else ()
        found += [f"{family}:{k}" for k in numbers[:MOST_DEVICES]] if first is not None else [family]
    return list(dict.fromkeys(found))


@click.command(
    "calibrate",
    epilog=format_examples(
        "joulelab calibrate --reference analyzer --supply titanium:12000",
        "joulelab calibrate --reference pdu1 --device gpu:0-7 --zero without-gpus",
        "joulelab calibrate --reference analyzer --check",
    ),
)
@click.option("--reference", required=True, metavar="METER", help="The better meter, by its name in joulelab.toml.")
@click.option("--device", "devices", default="gpu", show_default=True, metavar="SCOPES", help="Devices: gpu:0-7.")
@click.option(
    "--supply", metavar="CLASS:W", help="Power supplies: titanium:12000, or efficiencies: 94.5,96.2,94.8:12000."
)
@click.option("--fixed-fans", is_flag=True, help="The fans of the node run at a fixed speed.")
@click.option("--zero", metavar="RUN", help="A run of the idle node without these devices; it shows their offset.")
@click.option("--accept-far", is_flag=True, help="Store gains and offsets beyond the assumed errors, too.")
@click.option("--step", type=Duration(5.0), help="Length of a step.  [default: by the speed of the reference]")
@click.option(
    "--repeat", type=click.IntRange(1, 20), default=3, show_default=True, metavar="N", help="Steps of each level."
)
@click.option("--seed", type=int, metavar="N", help="Order of the steps.  [default: drawn]")
@click.option(
    "--command",
    "load",
    default="",
    metavar="CMD",
    help="Load a GPU by this command instead of burn: {gpu}, {seconds}, and {level} instead of caps.",
)
@click.option("--no-caps", is_flag=True, help="Do not set power caps; loads differ by the size of their matrices.")
@click.option("--from", "source", metavar="RUN", help="Fit the staircase of an earlier run again.")
@click.option("--check", is_flag=True, help="Repeat a short part and compare it with the calibration in use.")
@click.option(
    "--dry-run", is_flag=True, help="Only show the plan and its time; with --from the result. Stores nothing."
)
@METER_OPTIONS[0]
@METER_OPTIONS[1]
@json_option
@runs_option
def command(**given: Any) -> None:
    """Measure gain and offset of meters against a better one.

    Each device is loaded step by step, in random order, while the reference is read. The result replaces the assumed
    error in all later runs on these devices. `joulelab calibrations` lists and shares it.
    """
    from joulelab.run.signal_forwarding import hold_signals

    with hold_signals():  # these import numpy, and the staircase is recorded afterwards
        from joulelab.calibration.calibration_record import fit_run, guess_supply, parse_supply
        from joulelab.calibration.recorded_steps import FitOptions
    from joulelab.store.run_folder import find_run
    from joulelab.store.run_reader import open_run

    supply = None if given["supply"] is None else parse_supply(given["supply"])
    runs: Path = given["runs"]
    zero = None if given["zero"] is None else find_run(runs, given["zero"])
    if given["source"] is not None:
        run, devices = find_run(runs, given["source"]), []
    else:
        plan = make_plan(given)
        if given["dry_run"]:
            _print_plan(plan, as_json=given["as_json"])
            return
        print_notice(
            f"{len(plan.steps)} steps of {plan.step_s:g} s on {', '.join(plan.devices)}: {_word_time(plan.duration_s)}"
        )
        run, devices = _record_staircase(plan, given), list(plan.devices)
    with show_progress(f"fitting {run.name}"), contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_run(run))
        without = None if zero is None else stack.enter_context(open_run(zero))
        devices = devices or _list_measured(opened, given["devices"])
        if supply is None:
            supply = guess_supply(_find_highest(opened, given["reference"]))
        try:
            options = FitOptions(
                given["reference"],
                tuple(devices),
                supply=supply,
                has_fixed_fans=given["fixed_fans"],
                zero=without,
                accept_far=given["accept_far"] or given["check"],
            )
            fitted = fit_run(opened, options)
        except JoulelabError:
            print_notice(f"the staircase is recorded in {shorten_path(run)}; fit it again with --from {run.name}")
            raise
    if given["check"]:
        _report_check(fitted, as_json=given["as_json"])
    else:
        _report_fit(fitted, run, as_json=given["as_json"], is_stored=not given["dry_run"])


def make_plan(given: dict[str, Any]) -> StaircasePlan:
    """Return the plan of a staircase by the options of the command. Raises ConfigError."""
    import random

    from joulelab.calibration.staircase import StaircasePlan, plan_check, plan_steps

    devices = parse_devices(given["devices"]) if given["devices"] != "gpu" else next(filter(None, _list_gpus()))
    others = [scope for scope in devices if not scope.startswith("gpu:")]
    if others:
        what, why = f"{', '.join(others)} cannot be loaded step by step", "only GPUs have a burn workload of their own"
        then = "record a run with phases named `calibrate`, then give --from RUN"
        raise ConfigError(what, where="--device", why=why, next=then, code="config.no-load")
    _refuse_missing(devices)
    words = tuple(shlex.split(given["load"]))
    caps = {} if given["no_caps"] or "{level}" in given["load"] else _find_caps(devices)
    if words and not caps and "{level}" not in given["load"]:
        what, why = "all steps would have the same load", "no caps are set, and the command has no {level}"
        then = "use {level} (0.25 to 1) in the command, or let joulelab set caps: joulelab cap status"
        raise ConfigError(what, where="--command", why=why, next=then, code="config.no-levels")
    seed = random.getrandbits(32) if given["seed"] is None else given["seed"]
    plan = plan_check if given["check"] else plan_steps
    steps = plan(len(devices), given["repeat"], seed)
    return StaircasePlan(tuple(devices), steps, given["step"] or _choose_step(given, words), caps, words)


def _choose_step(given: dict[str, Any], words: Sequence[str]) -> float:
    """Return the length of a step (s) by the speed of the reference. Raises ConfigError if it is slow."""
    from joulelab.calibration.staircase import choose_step_s

    update_s = _find_update_s(given["reference"])
    step_s = choose_step_s(update_s, has_command=bool(words), is_check=given["check"])
    if step_s > SLOW_STEP_S:
        what, why = f"{given['reference']} is a slow reference", f"it has a new value every {update_s:g} s"
        then = f"take a faster one, or give the length yourself: --step {step_s:.0f}s"
        raise ConfigError(what, where="--reference", why=why, next=then, code="config.slow-reference")
    return step_s


def _find_update_s(name: str) -> float:
    """Open the reference, return the time (s) between its values or their window. Raises ConfigError, MeterError."""
    from joulelab.instruments import open_meter
    from joulelab.run.run_command import prepare_run
    from joulelab.run.run_options import RunOptions

    options = prepare_run(RunOptions(runs=Path()), os.environ, times={}, warn=print_notice)
    entry = next((item for item in options.also if name in (item.get("name"), item["config"].get("label"))), None)
    if entry is None:
        there = ", ".join(str(item.get("name") or item["meter"]) for item in options.also) or "no meters"
        what, why = f"there is no meter {name!r}", f"joulelab.toml has {there}"
        raise ConfigError(what, where="--reference", why=why, next="joulelab meters", code="config.no-reference")
    meter = open_meter(entry["meter"], entry["config"])
    try:
        powers = [(s.period_s, c) for s in meter.streams() for c in s.channels if c.kind == "power"]
        slowest = [max(period_s, c.update_s or 0.0, c.window_s or 0.0) for period_s, c in powers]
    finally:
        meter.close()
    return max(slowest, default=1.0)


def _list_gpus() -> tuple[list[str], list[str]]:
    """Return the GPUs of NVIDIA and of AMD. Raises ConfigError if there are none."""
    from joulelab.instruments.visible import read_node_gpus

    there = read_node_gpus()
    nvidia, amd = (
        [f"gpu:{gpu.index}" for gpu in there.nvidia],
        [f"gpu:{there.first + k}" for k in range(len(there.amd))],
    )
    if not nvidia and not amd:
        raise ConfigError("there is no GPU to calibrate", next="joulelab meters", code="config.no-gpu")
    return nvidia, amd


def _refuse_missing(devices: Sequence[str]) -> None:
    """Raise ConfigError if this node lacks one of the GPUs."""
    there = [scope for scopes in _list_gpus() for scope in scopes]
    missing = [scope for scope in devices if scope not in there]
    if missing:
        what, why = f"there is no {', '.join(missing)}", f"this node has {', '.join(there)}"
        raise ConfigError(what, where="--device", why=why, next="joulelab meters", code="config.unknown-device")


def _list_measured(run: Any, text: str) -> list[str]:
    if text != "gpu":
        return parse_devices(text)
    return sorted({s.scope for table in run.tables() for s in table.streams if s.scope.startswith("gpu:")})


def _find_highest(run: Any, reference: str) -> float:
    """Return the highest power (W) that a reference read."""
    from joulelab.analysis.channels import load_channels

    channels = [c for s in load_channels(run) for c in s.channels if c.meter == reference and c.spec.kind == "power"]
    return max((float(c.readings.value.max()) for c in channels), default=1000.0)


def _find_caps(devices: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return lowest and usual cap (W) of the GPUs whose caps this user may set; none with a notice."""
    from joulelab.control.client import CapRequest, Caps

    try:
        with Caps(os.environ, who={"command": "joulelab calibrate"}) as caps:
            known = {d.scope: d for d in caps.status().devices if d.kind == "power" and d.scope in devices}
            found = {s: (d.lowest, d.default or d.highest) for s, d in known.items()}
            if set(found) == set(devices):
                caps.set([CapRequest(s, high) for s, (_, high) in found.items()])  # tried before anything is loaded
                caps.release()
                return found
    except JoulelabError as error:
        print_notice(f"no caps are set ({error}); loads differ by the size of their matrices instead")
    return {}


def _record_staircase(plan: StaircasePlan, given: dict[str, Any]) -> Path:
    """Record the staircase as a run and return its folder. Raises JoulelabError if it did not end well."""
    from joulelab.run.run_command import prepare_run, run_command
    from joulelab.run.run_options import RunOptions
    from joulelab.run.signal_forwarding import SignalBox
    from joulelab.run.workload_process import exit_like_workload, strip_own_locale

    options = RunOptions(runs=given["runs"], name="calibrate", analyse=False)
    wanted = given["meters"]
    options = prepare_run(
        options, os.environ, times={"idle_s": 2.0}, wanted=wanted, without=given["without"], warn=print_notice
    )
    words = [sys.executable, "-m", "joulelab.calibration.staircase", plan.to_json()]
    with SignalBox() as signals:
        outcome = run_command(words, options, strip_own_locale(os.environ), warn=print_notice, signals=signals)
        for problem in outcome.problems:
            print_notice(problem)
        if outcome.run is None or outcome.exit_code != 0:
            print_notice("the staircase did not end well; nothing is calibrated")
            exit_like_workload(outcome.exit_code or (None if outcome.signal else 1), outcome.signal)
    return outcome.run


def _print_plan(plan: StaircasePlan, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"steps": len(plan.steps), "step_s": plan.step_s, "duration_s": plan.duration_s, "levels": plan.steps}
        )
        return
    how = "power caps" if plan.caps else "the given command" if plan.words else "matrices of several sizes"
    click.echo(f"{len(plan.steps)} steps of {plan.step_s:g} s, {_word_time(plan.duration_s)} in all; levels by {how}.")
    for number, levels in enumerate(plan.steps):
        loads = "  ".join(f"{d} {level:4.0%}" for d, level in zip(plan.devices, levels, strict=True))
        click.echo(f"{number:4d}  {loads}")


def _word_time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _report_fit(fitted: FittedRun, run: Path, *, as_json: bool, is_stored: bool) -> None:
    """Store a calibration if it is to be, and print it."""
    from joulelab.calibration.calibration_tables import lay_out_fit
    from joulelab.run.run_options import get_host_name
    from joulelab.store.calibration_files import write_calibration

    path = write_calibration(os.environ, get_host_name(os.environ), fitted.record) if is_stored else None
    if as_json:
        print_json({**fitted.record, "file": None if path is None else str(path), "folder": str(run)})
    else:
        print_blocks(lay_out_fit(fitted, path, shorten_path(run)))


def _report_check(fitted: FittedRun, *, as_json: bool) -> None:
    from joulelab.calibration.calibration_tables import compare_fit, lay_out_check
    from joulelab.run.run_options import get_host_name
    from joulelab.store.calibration_files import load_calibrations

    records, problems = load_calibrations(os.environ, get_host_name(os.environ))
    for problem in problems:
        print_notice(problem)
    rows = compare_fit(fitted, records)
    if not rows:
        what = "there is no calibration of these devices to check"
        raise ConfigError(what, next="joulelab calibrate --reference METER", code="config.nothing-to-check")
    if as_json:
        print_json({"devices": [row.to_json() for row in rows]})
    else:
        print_blocks(lay_out_check(rows))
    if any(row.verdict == "differs" for row in rows):
        click.get_current_context().exit(1)
