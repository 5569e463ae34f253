"""Read Slurm's energy accounting: jobs that ended or run, and the power of nodes; for any user, without root.

`open_archive({"job": "1234"})` gives an object with `fetch(start, end)`, `interval` (start_utc_ns, end_utc_ns), `facts`
(state, exit_code, nodes, name, user, elapsed_s, plugin, frequency_s, row and more, for labels), `steps` (name,
start_utc_ns, end_utc_ns; for phases) and `close()`. `open_meter` reads nodes, or a job while it runs.
"""

from __future__ import annotations

import math
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, Unavailable
from joulelab.core.spec import Spec, Stream
from joulelab.instruments.settings import check_keys, number, seconds, text
from joulelab.instruments.slurm.archive import JobArchive
from joulelab.instruments.slurm.client import Slurm, watts
from joulelab.instruments.slurm.job import Finder
from joulelab.instruments.slurm.plugins import sampling_of
from joulelab.instruments.slurm.rows import MOST_W, energy_of, live_energy
from joulelab.instruments.wall import COMMON, feeds_of, label_of, place, stated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter
    from joulelab.instruments.slurm.plugins import Sampling

SUMMARY = "nodes' power and jobs' energy as Slurm accounts them (sacct, sstat, scontrol)"
PRIVILEGE = "none: any user of the cluster; a job that runs is told to its owner only"
TRIED = "a real Slurm 22.05 with the simulated node's energy; not on hardware"
CONFIG = COMMON | {
    "nodes": "names of nodes whose power is read (this machine)",
    "job": "a job: 1234, 1234_5 (task of an array), 1234+1 (component), self (the one that this runs in)",
    "attempt": "which execution of a job that was requeued, from 1 (the last)",
    "settle_s": "seconds to wait for the database to have a job that has just ended (10)",
    "frequency_s": "seconds between Slurm's looks at the meter, where the cluster does not tell (EnergyIPMIFrequency)",
    "slurm_conf": "path of slurm.conf, where SLURM_CONF does not name it",
}
DEFAULT = False
SECRETS: tuple[str, ...] = ()


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_keys("slurm", config, CONFIG)
    label = label_of(config)
    if config.get("job") != "self":  # where that is meant, the run may be in a job or not
        _job(config)
    _node_names(config)
    _attempt(config)
    for key in ("timeout_s", "period_s", "frequency_s"):
        seconds(label, config, key, 1.0)
    number(label, config, "settle_s", 10.0, above=-1e-12)
    text(label, config, "slurm_conf")


def open_archive(config: Mapping[str, Any]) -> JobArchive:
    """Find the job that `config` names. Raises Unavailable, Denied, ReadFailed, ConfigError."""
    slurm = _open(config)
    job = _job(config)
    if job is None:
        raise ConfigError("no job is given", where=f"meter {label_of(config)}", next='set job = "1234"')
    finder = _finder(config, slurm, job, _sampling(config, slurm))
    return JobArchive(slurm, finder, config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open the power of nodes, or the job that `config` names. Raises Unavailable, Denied, ReadFailed, ConfigError."""
    job = _job(config)
    slurm = _open(config, asks=1 if job is None else 3)
    sampling = _sampling(config, slurm)
    if sampling.plugin.name == "none":
        raise Unavailable(
            "this cluster does not account energy",
            where=label_of(config),
            why="AcctGatherEnergyType is none",
            next="ask the administrators for an energy plugin, or read the node's BMC",
        )
    if job is not None:
        return JobMeter(slurm, _finder(config, slurm, job, sampling), config)
    return NodeMeter(slurm, config, sampling)


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Say what of Slurm answers: its programs, the controller, the database, the energy plugin, the nodes."""
    if isinstance(error, ConfigError):
        return [str(error)]
    slurm, said = _open(config), [str(error)]
    try:
        sampling = sampling_of(slurm.settings())
    except JoulelabError as problem:
        return [*said, f"the controller does not answer: {problem}"]
    told = f"every {sampling.frequency_s:g} s" if sampling.told else "at an interval that is not told"
    said.append(
        f"the controller answers; energy by the plugin {sampling.plugin.name} ({sampling.plugin.covers}), {told}"
    )
    try:
        slurm.accounting("1")
        said.append("the database answers")
    except JoulelabError as problem:
        said.append(f"the database does not answer: {problem}")
    for name in _node_names(config):
        try:
            found = slurm.node(name)
            said.append(
                f"node {name}: CurrentWatts={found.get('CurrentWatts', 'n/s')}, {found.get('State', 'no state')}"
            )
        except JoulelabError as problem:
            said.append(f"node {name}: {problem}")
    return said


class NodeMeter:
    """Read the power of nodes as the controller last heard it; 0 W and n/s are no readings."""

    def __init__(self, slurm: Slurm, config: Mapping[str, Any], sampling: Sampling) -> None:
        """Check that the nodes are there. Raises MeterError."""
        self._slurm = slurm
        self._where = label_of(config)
        if not sampling.node_s:
            raise Unavailable(
                "the controller does not ask nodes for their power",
                where=self._where,
                why="AcctGatherNodeFreq is 0",
                next="ask the administrators to set it, or read the node's BMC",
            )
        names = _node_names(config)
        period_s = seconds(self._where, config, "period_s", max(sampling.node_s, 1.0))
        accuracy = stated(config, sampling.plugin.accuracy(1.0))
        channels = (
            Spec("power_w", "power", "W", "power", sampling.node_s, sampling.node_s, accuracy=accuracy),
            Spec("average_w", "power", "W"),
        )
        self._streams = []
        for name in names:
            slurm.node(name)
            where = _place(config, sampling.plugin.scope, name, len(names))
            stream = Stream(name, "power", period_s=period_s, channels=channels, device=name, **where)
            self._streams.append(replace(stream, model=f"slurm {sampling.plugin.name}"))

    def streams(self) -> Sequence[Stream]:
        """Return one stream per node."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return watts now and on average. Raises ReadFailed, Unavailable."""
        found = self._slurm.node(stream.name)
        now, average = watts(found.get("CurrentWatts"), self._where), watts(found.get("AveWatts"), self._where)
        if not now or now > MOST_W:
            why = f"CurrentWatts={found.get('CurrentWatts', 'n/s')}"
            advice = "it is tried again; slurmd's log there says whether its plugin works"
            raise ReadFailed(f"node {stream.name} has no power reading", where=self._where, why=why, next=advice)
        return now, average or math.nan

    def close(self) -> None:
        """Do nothing: programs run only while they are asked."""


class JobMeter:
    """Read the energy so far of a job that runs, then what it came to."""

    def __init__(self, slurm: Slurm, finder: Finder, config: Mapping[str, Any]) -> None:
        """Check that the job is there. Raises MeterError, ConfigError."""
        self._slurm = slurm
        self._finder = replace(finder, settle_s=0.0)  # a reading does not wait: the next one comes
        self._sampling = sampling = finder.sampling
        self._where = label_of(config)
        row = finder.find().components[0].row
        looks = sampling.frequency_s
        period_s = seconds(self._where, config, "period_s", max(looks, 1.0))
        accuracy = replace(stated(config, sampling.plugin.accuracy(1.0)), offset=0.0)
        spec = Spec("energy_j", "energy", "J", "counter", looks, accuracy=accuracy)
        model = f"slurm {sampling.plugin.name}"
        self._stream = Stream("job", "job", "job", period_s, (spec,), device=f"{row.job} on {row.nodes}", model=model)

    def streams(self) -> Sequence[Stream]:
        """Return the stream of the job."""
        return (self._stream,)

    def read(self, stream: Stream) -> Sequence[float]:  # noqa: ARG002 there is one
        """Return joules since the job's start. Raises ReadFailed, Denied, Unavailable."""
        found = self._finder.find()
        total = 0
        for component in found.components:
            if found.running and component.row.end_ns is None:
                energy = live_energy(component, self._slurm.live(component.row.raw))
            else:
                energy = energy_of(component, self._sampling)
            if energy.joules is None:
                what = f"job {component.row.job} has no energy"
                raise ReadFailed(what, where=self._where, why=energy.reason, next="it is tried again")
            total += energy.joules
        return (float(total),)

    def close(self) -> None:
        """Do nothing: programs run only while they are asked."""


def _open(config: Mapping[str, Any], asks: int = 1) -> Slurm:
    """Return the programs; `asks` of them together are done within `timeout_s`."""
    check_keys("slurm", config, CONFIG)
    label = label_of(config)
    timeout_s = seconds(label, config, "timeout_s", 10.0)
    return Slurm(timeout_s=timeout_s / asks, conf=text(label, config, "slurm_conf"), where=label)


def _sampling(config: Mapping[str, Any], slurm: Slurm) -> Sampling:
    """Return how energy is accounted, from the controller; `frequency_s` is what it does not tell."""
    settings = slurm.settings()
    if "AcctGatherEnergyType" not in settings:
        why = "scontrol show config has no AcctGatherEnergyType"
        raise ReadFailed("how energy is accounted is not told", where=label_of(config), why=why, next="try again")
    sampling = sampling_of(settings)
    if "frequency_s" not in config:
        return sampling
    given = seconds(label_of(config), config, "frequency_s", sampling.frequency_s)
    return replace(sampling, frequency_s=given, told=True)


def _finder(config: Mapping[str, Any], slurm: Slurm, job: str, sampling: Sampling) -> Finder:
    label, attempt = label_of(config), _attempt(config)
    settle_s = number(label, config, "settle_s", 10.0, above=-1e-12)
    return Finder(slurm, job, label, sampling, settle_s=settle_s, attempt=attempt)


def _attempt(config: Mapping[str, Any]) -> int | None:
    attempt = config.get("attempt")
    if attempt is not None and (not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1):
        raise ConfigError(f"attempt is {attempt!r}", where=f"meter {label_of(config)}", next="give a number from 1")
    return attempt


def _job(config: Mapping[str, Any]) -> str | None:
    given = config.get("job")
    if given is None:
        return None
    where, advice = f"meter {label_of(config)}", 'give "1234", "1234_5", "1234+1" or "self"'
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ConfigError(f"job is {given!r}", where=where, next=advice)
    name = str(given).strip()
    if name == "self":
        name = os.environ.get("SLURM_JOB_ID", "")
        if not name:
            raise Unavailable("this does not run in a job", where=where, why="SLURM_JOB_ID is not set", next=advice)
    if "." in name:
        advice = f"name the job: joulelab import slurm {name.partition('.')[0][:20]} lists its steps as phases"
    if not all(part.isascii() and part.isdigit() for part in name.replace("+", "_").split("_", 1)):
        raise ConfigError(f"job is {name[:40]!r}", where=where, next=advice)
    return name


def _node_names(config: Mapping[str, Any]) -> list[str]:
    given = config.get("nodes")
    if given is None:
        return [os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]]
    names = [given] if isinstance(given, str) else given
    fits = isinstance(names, list | tuple) and names and all(isinstance(n, str) and _is_node(n) for n in names)
    if not fits or len(set(names)) != len(names):
        advice = 'give names of nodes: nodes = ["node07"]'
        raise ConfigError(f"nodes is {given!r}", where=f"meter {label_of(config)}", next=advice)
    return list(names)


def _is_node(name: str) -> bool:
    return bool(name) and not name.startswith("-") and name.replace("-", "").replace(".", "").replace("_", "").isalnum()


def _place(config: Mapping[str, Any], feeds: str, name: str, count: int) -> Any:
    """Return where a node's stream belongs: the node itself, or one of several that are read from one machine."""
    if count == 1:
        return place(config, feeds)
    whole = feeds_of(config, "") if "feeds" in config else ""
    return {"scope": f"node:{name}", "parent": whole or None, "sums": whole, "parts": count if whole else 0}
