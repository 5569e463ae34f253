"""Answer as Slurm's programs would for the job of a slot, so that its energy is added by the code of real clusters.

The energy is what a plugin sees that looks at the node's counter every so often: what the counter rose by between its
last look before the job's start and its last before the end.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.instruments.slurm.client import Answer, SlurmClient
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.accounting import fill_in
from joulelab.study.slots import JOB, Slot, State
from joulelab.twin import readings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.virtual.bench import Bench

FAMILY = "slurm"
PLUGINS = ("xcc", "ipmi", "pm_counters", "rapl", "gpu")
OPTIONS = ("plugin", "frequency_s")
USUAL_S = 30.0
LATER_NS = 3600 * NS  # the database has long settled


def mounted_on(meters: Mapping[str, MountedMeter]) -> tuple[str, MountedMeter] | None:
    """Return the accounting of a cluster among a twin's meters, with its name."""
    return next(((name, m) for name, m in meters.items() if m.family == FAMILY), None)


def check(name: str, mounted: MountedMeter) -> None:
    """Refuse wrong options of an accounting. Raises ConfigError."""
    where = f"[meters.{name}]"
    for key in mounted.options:
        if key not in OPTIONS:
            raise ConfigError(f"unknown key {key!r}", where=where, next=suggest_name(key, list(OPTIONS)))
    if plugin_of(mounted) not in PLUGINS:
        raise ConfigError(
            f"there is no plugin {plugin_of(mounted)!r}", where=where, next=suggest_name("", list(PLUGINS))
        )


def plugin_of(mounted: MountedMeter) -> str:
    """Return the energy plugin: as the twin's file says, else by the side of the supplies that it counts on."""
    return str(mounted.options.get("plugin", "ipmi" if mounted.point == "node.ac" else "xcc"))


def frequency_of(mounted: MountedMeter) -> float:
    """Return how often the plugin looks at its counter, in s."""
    return float(mounted.options.get("frequency_s", USUAL_S))


def job_of(study: str, cell: str, slot: str) -> str:
    """Return the number of a slot's job; always the same."""
    digest = hashlib.sha256(f"{study}/{cell}/{slot}".encode()).digest()
    return str(1_000_000 + int.from_bytes(digest[:4]) % 8_000_000)


def account(folder: Path, run: Path, job: str, bench: Bench, meter: tuple[str, MountedMeter]) -> list[str]:
    """Add what the cluster accounts for a slot's job to its run; return problems in words."""
    name, mounted = meter
    row = _Job(job, bench, name, mounted)
    write_json_atomic(folder / JOB, {"job": job, "state": "COMPLETED", "why": "", "exit_code": "0:0"}, sync=False)
    slot = Slot(folder, State.DONE, run, claim={"job": job})
    return fill_in([slot], {}, slurm=SlurmClient(run=row.answer, where="twin"), now=lambda: row.end_ns + LATER_NS)


def counted_j(bench: Bench, name: str, mounted: MountedMeter, start_ns: int, end_ns: int) -> int:
    """Return what the counter rose by (J) from its last look before a job's start to its last before the end.

    Before the run the node was at rest, as it is after it.
    """
    timeline, period_s, gain = bench.timeline, frequency_of(mounted), bench.gain(name, mounted, mounted.point)
    changes: dict[str, Any] = {"period_s": period_s, "quantum_j": 1.0, "gain_error": gain}
    flaws = replace(mounted.flaws, **changes)
    period_ns = round(period_s * NS)
    since = bench.since(name, period_s) - period_ns
    share, curve = timeline.curve(mounted.point)
    before, after = readings.read_panel_j((share, curve), flaws, np.array([start_ns, end_ns]), start_ns=since)
    early_s = max(timeline.begin_ns - since - (start_ns - since) // period_ns * period_ns, 0) / NS
    first_w, last_w = share * curve.watts(np.array([timeline.begin_ns, timeline.close_ns]))
    # The curve goes on before its begin as it began: at work, where no idle time was asked for.
    return int(after - before - (first_w - min(first_w, last_w)) * early_s * (1 + gain))


class _Job:
    """Hold what sacct would say of one job."""

    def __init__(self, job: str, bench: Bench, name: str, mounted: MountedMeter) -> None:
        timeline = bench.timeline
        self._job, self._node, self._mounted = job, timeline.node.name, mounted
        self.start_ns = timeline.begin_ns // NS * NS
        self.end_ns = -(-timeline.close_ns // NS) * NS
        self._joules = counted_j(bench, name, mounted, self.start_ns, self.end_ns)

    def answer(self, words: Sequence[str], _: float) -> Answer:
        """Answer one of Slurm's programs."""
        if words[0] == "scontrol":
            looks = f"{frequency_of(self._mounted):.0f}"
            told = {"AcctGatherEnergyType": f"acct_gather_energy/{plugin_of(self._mounted)}"}
            told |= {"AcctGatherNodeFreq": f"{looks} sec", "EnergyIPMIFrequency": looks}
            return Answer(0, "".join(f"{key} = {value}\n" for key, value in told.items()), "")
        if "--allusers" in words:
            return Answer(0, "", "")  # nobody else is on the node
        return Answer(0, "".join(self._row(step) for step in ("", ".batch", ".extern")), "")

    def _row(self, step: str) -> str:
        seconds = (self.end_ns - self.start_ns) // NS
        times = [_stamp(t) for t in (self.start_ns, self.end_ns)]
        user = "" if step else "twin"
        fields = [self._job + step] * 2 + [self._job, user, "COMPLETED", "0:0", str(seconds), *times, "1", self._node]
        return "|".join([*fields, str(self._joules)]) + "\n"


def _stamp(utc_ns: int) -> str:
    return dt.datetime.fromtimestamp(utc_ns // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
