"""Name the agent's metrics, and fill them for a scrape."""

from __future__ import annotations

import platform
from math import isfinite
from typing import TYPE_CHECKING, Any

from joulelab.agent.watched import find_place, find_power_now, find_states
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.version import __version__
from joulelab.instruments.job_use import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.agent.collect import Collector, Seen
    from joulelab.agent.watched import MetricPlace
    from joulelab.analysis.live_state import CordSum, StreamState

_PLACE = ("scope", "meter", "device")
# Every metric: its kind, its labels, what it means. docs/how-to/agent.md has this table; a test holds them equal.
METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "joulelab_power_watts": (
        "gauge",
        _PLACE,
        "Power of a scope, mean of the last second; absent while it is not read.",
    ),
    "joulelab_energy_joules_total": (
        "counter",
        (*_PLACE, "source"),
        "Energy of a scope since the agent first read it: from the meter's counter, or integrated from its power.",
    ),
    "joulelab_accuracy_ratio": (
        "gauge",
        ("scope", "meter"),
        "Largest relative error of energy and power; absent if unknown.",
    ),
    "joulelab_load_ratio": ("gauge", _PLACE, "Load of a GPU, or of all CPUs (scope host), from 0 to 1."),
    "joulelab_temperature_celsius": ("gauge", _PLACE, "Temperature of a device."),
    "joulelab_phase_power_watts": (
        "gauge",
        _PLACE,
        "Power of a phase or bank of a PDU: another view of the power of its outlets; do not add it to them.",
    ),
    "joulelab_current_amperes": ("gauge", _PLACE, "Current of a phase, bank or outlet."),
    "joulelab_cap_watts": ("gauge", _PLACE, "Power cap that the device enforces."),
    "joulelab_cap_requested_watts": ("gauge", _PLACE, "Requested power cap."),
    "joulelab_rated_watts": ("gauge", ("scope",), "Rated power of the node, by its maker ([node] rated_w)."),
    "joulelab_planned_watts": (
        "gauge",
        ("scope",),
        "Power that the plan of the rack allows the node ([node] planned_w).",
    ),
    "joulelab_supply_watts": ("gauge", ("scope",), "Available power of a supply ([supply])."),
    "joulelab_meter_up": ("gauge", ("meter",), "Whether all streams of a meter are read (1) or not (0)."),
    "joulelab_meter_last_reading_timestamp_seconds": ("gauge", ("meter",), "When a meter was last read, in Unix time."),
    "joulelab_meter_read_errors_total": (
        "counter",
        ("meter",),
        "Failures of a meter; consecutive failures count once.",
    ),
    "joulelab_meter_streams": ("gauge", ("meter",), "Streams (devices) that a meter has."),
    "joulelab_meter_silent_streams": ("gauge", ("meter",), "Streams of a meter without a current reading."),
    "joulelab_slurm_job_info": (
        "gauge",
        ("slurm_job", "user", "account", "partition"),
        "A Slurm job that is on the node now; always 1.",
    ),
    "joulelab_slurm_job_lag_seconds": (
        "gauge",
        (),
        "Possible delay until the agent notices that a job starts or ends; absent without jobs.",
    ),
    "joulelab_job_energy_joules_total": (
        "counter",
        ("slurm_job", "scope", "meter"),
        "Energy of a scope of the node while a job was on it, including other jobs at the same time.",
    ),
    "joulelab_job_shared_seconds_total": (
        "counter",
        ("slurm_job",),
        "Seconds in which other jobs were on the node too: their energy is in this job's.",
    ),
    "joulelab_job_share_joules_total": (
        "counter",
        ("slurm_job", "container", "scope", "meter", "end"),
        "Part of a job or container in the energy of a GPU, CPUs or memory, by use (share), with bounds (low, high).",
    ),
    "joulelab_trap_active": (
        "gauge",
        ("device", "trap", "part", "severity"),
        "A condition that a device reported by an SNMP trap and that has not ended; always 1.",
    ),
    "joulelab_traps_total": ("counter", ("device", "trap", "severity"), "SNMP traps received."),
    "joulelab_traps_refused_total": (
        "counter",
        (),
        "Datagrams on the port for traps that were malformed, or too many.",
    ),
    "joulelab_build_info": ("gauge", ("version", "python"), "The agent's version; always 1."),
}


class Metrics:
    """Fill the metrics whenever a registry asks; `watts` are rated, planned and supply watts by scope."""

    def __init__(self, collector: Collector, watts: Mapping[str, Mapping[str, float]]) -> None:
        self._collector, self._watts = collector, watts

    def describe(self) -> Iterator[Any]:
        """Return nothing: what there is depends on the node."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """Give one family after another, those without a sample left out."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = samples(self._collector.seen())
        for name, scopes in self._watts.items():
            found[name] = {(scope,): watts for scope, watts in scopes.items()}
        jobs = self._collector.jobs
        lag_s = None if jobs is None else jobs.lag_s(monotonic_ns() / NS)
        found["joulelab_slurm_job_lag_seconds"] = {} if lag_s is None else {(): lag_s}
        found |= _traps(self._collector)
        found["joulelab_build_info"] = {(__version__, platform.python_version()): 1.0}
        for name, (kind, labels, told) in METRICS.items():
            values = found.get(name)
            if values:
                family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, told, labels=labels)
                for key, value in values.items():
                    family.add_metric(list(key), value)
                yield family


Samples = dict[str, dict[tuple[str, ...], float]]


def samples(seen: Seen) -> Samples:
    """Return every sample of the node by metric and labels; of two with the same labels the first counts."""
    found: Samples = {name: {} for name in METRICS}
    for one in seen.streams:
        _stream(found, one, seen.now_ns)
    for total in seen.sums:
        _energy(found, total, seen.now_ns)
    for health in seen.health:
        key = (health.meter,)
        found["joulelab_meter_up"][key] = float(health.up)
        found["joulelab_meter_read_errors_total"][key] = health.errors
        found["joulelab_meter_streams"][key] = health.streams
        found["joulelab_meter_silent_streams"][key] = health.silent
        if health.last_s is not None:
            found["joulelab_meter_last_reading_timestamp_seconds"][key] = health.last_s
    for account in seen.accounts:
        job = account.job
        if not account.ended_ns:
            found["joulelab_slurm_job_info"][job.number, job.user, job.account, job.partition] = 1.0
        found["joulelab_job_shared_seconds_total"][job.number,] = account.shared_s
        for (scope, meter), joules in account.energy_j.items():
            found["joulelab_job_energy_joules_total"][job.number, scope, meter] = joules
    for (name, (scope, meter)), share in seen.shares.items():
        owner = (name, "") if name.isdecimal() or name in (OTHER, "nobody") else ("", name)
        for end, joules in (("share", share.energy_j), ("low", share.low_j), ("high", share.high_j)):
            found["joulelab_job_share_joules_total"][*owner, scope, meter, end] = joules
    return found


def _stream(found: Samples, one: StreamState, now_ns: int) -> None:
    if one.gives_energy:
        _energy(found, one, now_ns)
    if one.is_fresh(now_ns):
        for name, value in find_states(one).items():
            found[name].setdefault(_labels(find_place(one)), value)


def _energy(found: Samples, one: StreamState | CordSum, now_ns: int) -> None:
    """Show energy and power of a scope; energy that stands still stays, a power that is not read does not."""
    place, energy_j, power_w = find_place(one), one.energy_j, find_power_now(one, now_ns)
    if isfinite(power_w):
        found["joulelab_power_watts"].setdefault(_labels(place), power_w)
    if isfinite(energy_j):
        found["joulelab_energy_joules_total"].setdefault((*_labels(place), one.source), energy_j)
    gain = one.gain
    if gain is not None:
        found["joulelab_accuracy_ratio"].setdefault((place.scope, place.meter), gain)


def _traps(collector: Collector) -> Samples:
    board = collector.board
    active: dict[tuple[str, ...], float] = {(*key, one.severity): 1.0 for key, one in board.active().items()}
    counts: dict[tuple[str, ...], float] = {key: float(count) for key, count in board.counted().items()}
    refused: dict[tuple[str, ...], float] = {(): float(board.refused)} if counts or board.refused else {}
    return {
        "joulelab_trap_active": active,
        "joulelab_traps_total": counts,
        "joulelab_traps_refused_total": refused,
    }


def _labels(place: MetricPlace) -> tuple[str, ...]:
    return place.scope, place.meter, place.device


def table() -> Sequence[tuple[str, str, str, str]]:
    """Return the metrics for the documentation: name, kind, labels, meaning."""
    return [(name, kind, ", ".join(labels), told) for name, (kind, labels, told) in METRICS.items()]
