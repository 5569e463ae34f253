"""Show the energy of an inference server: `joulelab serving requests`, `joulelab serving watch`."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import measure_terminal, print_blocks, print_json, print_notice, shorten_path, show_progress
from joulelab.cli.parameters import Duration, format_examples, json_option, name_run, runs_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.analysis.live_energy import LiveFigures
    from joulelab.core.spec import Meter

WORK_KINDS = ("output_tokens", "prompt_tokens", "requests")
MOST_COUNTS = 100  # kept to find the work at the time of the newest energy
CLEAR_LINE = "\r\x1b[2K"


@click.command(
    "requests",
    epilog=format_examples(
        "joulelab serving requests", "joulelab serving requests last --by team",
        "joulelab serving requests last --with-idle --out requests.parquet",
    ),
)  # fmt: skip
@click.argument("run", default="last")
@click.option("--by", help="Sum by a label of the requests: team, user.")
@click.option("--with-idle", is_flag=True, help="Divide idle energy, too, by the time of the requests.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one row for each request, as JSONL or Parquet by the name's end.",
)
@click.option(
    "--scope", type=click.Choice(["gpu", "node", "wall"]), help="Divide the energy of this scope (the first measured)."
)
@json_option
@runs_option
def requests_command(
    run: str, by: str | None, with_idle: bool, out: Path | None, scope: str | None, as_json: bool, runs: Path
) -> None:
    """Divide the energy of a run among its requests.

    RUN is an id or its beginning, a name, a path, or `last`. The shares of all requests, idle energy and
    unassigned energy add up to the measured energy.
    """
    from joulelab.serving.request_energy import attribute_run, write_requests
    from joulelab.serving.serving_tables import lay_out_requests
    from joulelab.store.run_folder import find_run
    from joulelab.store.run_reader import open_run

    path = find_run(runs, run)
    with show_progress(f"reading {path.name}"), open_run(path) as opened:
        found = attribute_run(opened, scope=scope, with_idle=with_idle, by=by)
    if out is not None:
        write_requests(found, out)
    if as_json:
        print_json(found.to_json() | {"folder": str(path)})
        return
    print_blocks(lay_out_requests(found, by))
    if out is not None:
        print_notice(f"{len(found.requests)} requests are in {out}")


@click.command(
    "watch",
    epilog=format_examples(
        "joulelab serving watch --url http://127.0.0.1:8000",
        "joulelab serving watch --url http://127.0.0.1:8000 --for 10m --json",
    ),
)
@click.option("--url", required=True, help="The server: http://HOST:PORT.")
@click.option("--for", "for_s", type=Duration(0.1), help="End after this time (at Ctrl-C).")
@click.option("--every", "every_s", type=Duration(0.1), default="5s", show_default=True, help="Time between two lines.")
@click.option("--idle", "idle_s", type=Duration(), default="0s", help="Record idle power for this time before.")
@click.option("--name", help="Name of the run.")
@json_option
@runs_option
def watch_command(
    url: str, for_s: float | None, every_s: float, idle_s: float, name: str | None, as_json: bool, runs: Path
) -> None:
    """Watch the energy per token of a server under its own traffic.

    It counts the tokens that the server reports in its metrics, and records a run like all others.
    """
    from joulelab.instruments.inference import make_plan_item, open_meter
    from joulelab.run.measure import Measurement
    from joulelab.run.run_command import prepare_run
    from joulelab.run.run_options import RunOptions

    meter = open_meter({"address": url, "label": "inference"})  # a wrong address is an error before the run begins
    try:
        options = RunOptions(
            runs=runs, name=name or "serving watch", also=[make_plan_item(url)], open_s=3.0, ready_s=4.0
        )
        options = prepare_run(options, os.environ, times={"idle_s": idle_s}, warn=print_notice)
        measured = Measurement(options.name, lambda: options, {}, _refuse_copy, has_meters=True)
        with measured:
            _show_lines(measured.run, meter, for_s, every_s, as_json=as_json)
    finally:
        meter.close()
    result = measured.result
    if result is None or measured.run is None:
        print_notice("nothing was recorded")
        return
    folder = shorten_path(measured.run)
    if as_json:
        from joulelab.report.result_json import describe_result

        print_json(describe_result(result) | {"folder": str(measured.run)}, one_line=True)
        return
    from joulelab.report.run_summary import lay_out_summary

    print_blocks(lay_out_summary(result, folder, width=measure_terminal(), handle=name_run(folder)))


def _refuse_copy(name: str) -> Any:
    raise TypeError(f"{name}: a watched server is no function")


def _show_lines(run: Path | None, meter: Meter, for_s: float | None, every_s: float, *, as_json: bool) -> None:
    """Print a line every few seconds until the time is over or Ctrl-C."""
    from joulelab.analysis.live_energy import LiveHost
    from joulelab.core.clock import monotonic_ns
    from joulelab.run.run_options import get_host_name

    begun = time.monotonic()
    host = None if run is None else LiveHost(run / get_host_name(), monotonic_ns(), over_s=every_s)
    watch = ServerWatch()
    watch.add_counts(_read_counts(meter), monotonic_ns())
    is_line = sys.stdout.isatty() and not as_json
    try:
        while for_s is None or time.monotonic() - begun < for_s:
            left_s = math.inf if for_s is None else begun + for_s - time.monotonic()
            time.sleep(max(min(every_s, left_s), 0.0))
            watch.add_counts(_read_counts(meter), monotonic_ns())
            watch.add_figures(None if host is None else _read_figures(host.read))
            if as_json:
                print_json(watch.to_json(), one_line=True)
            elif is_line:
                click.echo(f"{CLEAR_LINE}{watch.describe()}", nl=False)
            else:
                click.echo(watch.describe())
    except KeyboardInterrupt:
        pass
    finally:
        if is_line:
            click.echo("")
        if host is not None:
            host.close()


def _read_counts(meter: Meter) -> dict[str, float]:
    """Return the counters of the server, empty if it does not answer now."""
    from joulelab.core.errors import MeterError

    (stream,) = meter.streams()
    try:
        row = meter.read(stream)
    except MeterError:
        return {}
    return {spec.name: value for spec, value in zip(stream.channels, row, strict=True) if math.isfinite(value)}


def _read_figures(read: Callable[[], LiveFigures | None]) -> LiveFigures | None:
    """Return the energies so far, None where a file is just being written."""
    from joulelab.core.errors import StoreError

    try:
        return read()
    except (StoreError, OSError, ValueError):
        return None


@dataclass(slots=True)
class ServerWatch:
    """Follow the counters of a server and the energy beside them; `work` and `energy_j` are since the start.

    A counter that falls has begun again at zero: its count goes on. The newest energy is older than the newest counts:
    it is divided by the work at its own time, between the counts around it.
    """

    work: dict[str, float] = field(default_factory=dict)
    states: dict[str, float] = field(default_factory=dict)
    energy_j: float = math.nan
    power_w: float = math.nan
    seconds: float = 0.0
    is_answering: bool = True
    _last: dict[str, float] = field(default_factory=dict)
    _before: tuple[float, dict[str, float]] = (0.0, {})
    _now: tuple[float, dict[str, float]] = (0.0, {})
    _counts: deque[tuple[int, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=MOST_COUNTS))

    def add_counts(self, counts: Mapping[str, float], t_ns: int) -> None:
        """Take the newest counters and states, and the time at which they were read."""
        self.is_answering = bool(counts)
        for kind in WORK_KINDS:
            if kind in counts:
                last = self._last.get(kind, counts[kind])
                rise = counts[kind] - last if counts[kind] >= last else counts[kind]
                self.work[kind] = self.work.get(kind, 0.0) + rise
                self._last[kind] = counts[kind]
        if counts:
            self._counts.append((t_ns, dict(self.work)))
        self.states = {name: value for name, value in counts.items() if name not in WORK_KINDS}

    def _find_work(self, t_ns: int) -> dict[str, float]:
        """Return the work until a time, by the counts around it."""
        earlier = later = self._counts[0] if self._counts else (t_ns, dict(self.work))
        for one in self._counts:
            earlier, later = later, one
            if one[0] >= t_ns:
                break
        length_ns = later[0] - earlier[0]
        share = min(max((t_ns - earlier[0]) / length_ns, 0.0), 1.0) if length_ns > 0 else 1.0
        begin = earlier[1]
        return {kind: begin.get(kind, 0.0) + share * (work - begin.get(kind, 0.0)) for kind, work in later[1].items()}

    def add_figures(self, figures: LiveFigures | None) -> None:
        """Take the newest energy since the start."""
        if figures is None or "measured" not in figures.energy:
            return
        self.energy_j, self.power_w = figures.energy["measured"].value, figures.power_w.get("measured", math.nan)
        self.seconds = figures.seconds
        self._before, self._now = self._now, (self.energy_j, self._find_work(figures.at_ns))

    def find_unit_energy(self, kind: str, *, now: bool) -> float:
        """Return joules per unit of work, since the last line or since the start; NaN without work or energy."""
        before = self._before if now else (0.0, {})
        energy, done = self._now[0] - before[0], self._now[1].get(kind, 0.0) - before[1].get(kind, 0.0)
        return energy / done if done > 0 and energy > 0 else math.nan

    def describe(self) -> str:
        """Return one line: power, energy per token now and so far, requests."""
        from joulelab.report import format as fmt

        parts = [fmt.format_duration(self.seconds)]
        if math.isfinite(self.power_w):
            parts.append(fmt.format_rough(self.power_w, "W", 3))
        now, so_far = (self.find_unit_energy("output_tokens", now=each) for each in (True, False))
        for title, value in (("now", now), ("so far", so_far)):
            text = fmt.format_rough(value, "J/output token", 3) if math.isfinite(value) else "no tokens"
            parts.append(f"{title} {text}")
        running, waiting = self.states.get("running"), self.states.get("waiting")
        if running is not None:
            parts.append(f"{running:.0f} running" + ("" if waiting is None else f", {waiting:.0f} waiting"))
        return " · ".join(parts if self.is_answering else [*parts, "the server does not answer"])

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        energies = {
            kind: {name: _drop_nan(self.find_unit_energy(kind, now=name == "now")) for name in ("now", "so_far")}
            for kind in WORK_KINDS
        }
        plain = {"seconds": self.seconds, "power_w": _drop_nan(self.power_w), "energy_j": _drop_nan(self.energy_j)}
        return plain | {"work": self.work, "states": self.states, "per_work": energies, "answers": self.is_answering}


def _drop_nan(value: float) -> float | None:
    return value if math.isfinite(value) else None
