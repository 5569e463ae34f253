"""Read Slurm's energy accounting: jobs that ended or run, and the power of nodes; for any user, without root.

`open_archive({"job": "1234"})` gives an object with `fetch(start, end)`, `interval` (start_utc_ns, end_utc_ns), `facts`
(state, exit_code, nodes, name, user, elapsed_s, plugin, frequency_s, row and more, for labels), `steps` (name,
start_utc_ns, end_utc_ns; for phases) and `close()`. `open_meter` reads nodes, or a job while it runs.
"""

from __future__ import annotations

import math
import os
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.core.spec import Spec, Stream
from joulelab.instruments.settings import check_keys, number, seconds, text
from joulelab.instruments.slurm.archive import JobArchive, JobFinder
from joulelab.instruments.slurm.client import SlurmClient, parse_number
from joulelab.instruments.slurm.energies import MOST_W, add_live_energy, choose_energy, find_sampling
from joulelab.instruments.wall import COMMON, feeds_of, label_of, place, stated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter
    from joulelab.instruments.slurm.energies import Sampling

SUMMARY = "nodes' power and jobs' energy as Slurm accounts them (sacct, sstat, scontrol)"
PRIVILEGE = "none: any user of the cluster; a running job is shown to its owner only"
TRIED = "a real Slurm 22.05 with the simulated node's energy; not on hardware"
CONFIG = COMMON | {
    "nodes": "names of nodes whose power is read (this machine)",
    "job": "a job: 1234, 1234_5 (task of an array), 1234+1 (component), self (the job that this runs in)",
    "attempt": "which execution of a requeued job, from 1 (the last)",
    "settle_s": "seconds to wait until the database has a job that has just ended (10)",
    "frequency_s": "seconds between samples of the meter, if the cluster does not state them (EnergyIPMIFrequency)",
    "slurm_conf": "path of slurm.conf, if SLURM_CONF does not name it",
}
DEFAULT = False
SECRETS: tuple[str, ...] = ()
NODE = re.compile(r"\w[\w.-]*")


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_keys("slurm", config, CONFIG)
    label = label_of(config)
    if config.get("job") != "self":  # the run may be in a job or not
        _read_job(config)
    _read_nodes(config)
    _read_attempt(config)
    for key in ("timeout_s", "period_s", "frequency_s"):
        seconds(label, config, key, 1.0)
    number(label, config, "settle_s", 10.0, above=-1e-12)
    text(label, config, "slurm_conf")


def open_archive(config: Mapping[str, Any]) -> JobArchive:
    """Find the job of an entry. Raises Unavailable, Denied, ReadFailed, ConfigError."""
    slurm, job = _open_client(config), _read_job(config)
    if job is None:
        advice = 'set job = "1234"'
        raise ConfigError("no job is given", where=f"meter {label_of(config)}", next=advice, code="config.no-job")
    return JobArchive(_make_finder(config, slurm, job, _find_sampling(config, slurm)), config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open the power of nodes, or the job of an entry. Raises Unavailable, Denied, ReadFailed, ConfigError."""
    job = _read_job(config)
    slurm = _open_client(config, calls=1 if job is None else 3)
    sampling = _find_sampling(config, slurm)
    if sampling.plugin.name == "none":
        what, why = "this cluster does not account energy", "AcctGatherEnergyType is none"
        advice = "ask the administrators for an energy plugin, or read the node's BMC"
        raise Unavailable(what, where=label_of(config), why=why, next=advice, code="unavailable.no-plugin")
    if job is not None:
        return JobMeter(slurm, _make_finder(config, slurm, job, sampling), config)
    return NodeMeter(slurm, config, sampling)


class NodeMeter:
    """Read the power of nodes that the controller last received; 0 W and n/s are no readings."""

    def __init__(self, slurm: SlurmClient, config: Mapping[str, Any], sampling: Sampling) -> None:
        """Check that the nodes exist. Raises MeterError."""
        self._slurm = slurm
        self._where = label_of(config)
        if not sampling.node_s:
            what, why = "the controller does not poll the nodes' power", "AcctGatherNodeFreq is 0"
            advice, code = "ask the administrators to set it, or read the node's BMC", "unavailable.not-polled"
            raise Unavailable(what, where=self._where, why=why, next=advice, code=code)
        names = _read_nodes(config)
        period_s = seconds(self._where, config, "period_s", max(sampling.node_s, 1.0))
        accuracy = stated(config, sampling.plugin.describe_accuracy(1.0))
        channels = (
            Spec("power_w", "power", "W", "power", sampling.node_s, sampling.node_s, accuracy=accuracy),
            Spec("average_w", "power", "W"),
        )
        whole = feeds_of(config, "") if "feeds" in config else ""
        self._streams = []
        for name in names:
            slurm.read_node(name)
            # The node itself, or one of several that are read from one machine.
            several = {
                "scope": f"node:{name}",
                "parent": whole or None,
                "sums": whole,
                "parts": len(names) if whole else 0,
            }
            where: Any = place(config, sampling.plugin.scope) if len(names) == 1 else several
            model = f"slurm {sampling.plugin.name}"
            self._streams.append(
                Stream(name, "power", period_s=period_s, channels=channels, device=name, model=model, **where)
            )

    def streams(self) -> Sequence[Stream]:
        """Return one stream per node."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return watts now and on average. Raises ReadFailed, Unavailable."""
        found = self._slurm.read_node(stream.name)
        now, average = (parse_number(found.get(key), where=self._where) for key in ("CurrentWatts", "AveWatts"))
        if not now or now > MOST_W:
            what, why = f"node {stream.name} has no power reading", f"CurrentWatts={found.get('CurrentWatts', 'n/s')}"
            advice, code = "it is tried again; see slurmd's log there", "read-failed.no-power"
            raise ReadFailed(what, where=self._where, why=why, next=advice, code=code)
        return float(now), float(average or math.nan)

    def close(self) -> None:
        """Do nothing: each program ends with its answer."""


class JobMeter:
    """Read the energy so far of a running job, then its final energy."""

    def __init__(self, slurm: SlurmClient, finder: JobFinder, config: Mapping[str, Any]) -> None:
        """Check that the job exists. Raises MeterError, ConfigError."""
        self._slurm = slurm
        self._finder = replace(finder, settle_s=0.0)  # a reading does not wait: the next one comes
        self._where = label_of(config)
        sampling, row = finder.sampling, finder.find_execution().execution.row
        period_s = seconds(self._where, config, "period_s", max(sampling.frequency_s, 1.0))
        accuracy = replace(stated(config, sampling.plugin.describe_accuracy(1.0)), offset=0.0)
        spec = Spec("energy_j", "energy", "J", "counter", sampling.frequency_s, accuracy=accuracy)
        device, model = f"{row.job} on {row.nodes}", f"slurm {sampling.plugin.name}"
        self._stream = Stream("job", "job", "job", period_s, (spec,), device=device, model=model)

    def streams(self) -> Sequence[Stream]:
        """Return the stream of the job."""
        return (self._stream,)

    def read(self, stream: Stream) -> Sequence[float]:  # noqa: ARG002 there is one
        """Return joules since the job's start. Raises ReadFailed, Denied, Unavailable."""
        found = self._finder.find_execution()
        row = found.execution.row
        if found.running:
            energy = add_live_energy(found.execution, self._slurm.read_live(row.raw))
        else:
            energy = choose_energy(found.execution, self._finder.sampling)
        if energy.joules is None:
            what, code = f"job {row.job} has no energy", "read-failed.no-energy"
            raise ReadFailed(what, where=self._where, why=energy.reason, next="it is tried again", code=code)
        return (float(energy.joules),)

    def close(self) -> None:
        """Do nothing: each program ends with its answer."""


def _open_client(config: Mapping[str, Any], calls: int = 1) -> SlurmClient:
    """Return a client; `calls` of its programs together end within `timeout_s`."""
    check_keys("slurm", config, CONFIG)
    label = label_of(config)
    timeout_s = seconds(label, config, "timeout_s", 10.0)
    return SlurmClient(timeout_s=timeout_s / calls, conf=text(label, config, "slurm_conf"), where=label)


def _find_sampling(config: Mapping[str, Any], slurm: SlurmClient) -> Sampling:
    """Return how energy is accounted, from the controller; `frequency_s` of the entry replaces its interval."""
    settings, label = slurm.read_settings(), label_of(config)
    if "AcctGatherEnergyType" not in settings:
        what, why = "the energy plugin is unknown", "scontrol show config has no AcctGatherEnergyType"
        raise ReadFailed(what, where=label, why=why, next="try again", code="read-failed.no-settings")
    sampling = find_sampling(settings)
    if "frequency_s" not in config:
        return sampling
    return replace(sampling, frequency_s=seconds(label, config, "frequency_s", 1.0), is_stated=True)


def _make_finder(config: Mapping[str, Any], slurm: SlurmClient, job: str, sampling: Sampling) -> JobFinder:
    label = label_of(config)
    settle_s = number(label, config, "settle_s", 10.0, above=-1e-12)
    return JobFinder(slurm, job, label, sampling, settle_s=settle_s, attempt=_read_attempt(config))


def _read_attempt(config: Mapping[str, Any]) -> int | None:
    attempt = config.get("attempt")
    if attempt is not None and (type(attempt) is not int or attempt < 1):
        where, advice = f"meter {label_of(config)}", "give a number from 1"
        raise ConfigError(f"attempt is {attempt!r}", where=where, next=advice, code="config.wrong-value")
    return attempt


def _read_job(config: Mapping[str, Any]) -> str | None:
    given = config.get("job")
    if given is None:
        return None
    where, advice = f"meter {label_of(config)}", 'give "1234", "1234_5", "1234+1" or "self"'
    name = str(given).strip() if type(given) in (int, str) else ""
    if name == "self":
        name = os.environ.get("SLURM_JOB_ID", "")
        if not name:
            what, why, code = "this does not run in a job", "SLURM_JOB_ID is not set", "unavailable.no-job"
            raise Unavailable(what, where=where, why=why, next=advice, code=code)
    if "." in name:
        advice = f"its steps become phases; import the job: joulelab import slurm {name.partition('.')[0][:20]}"
    if not all(part.isascii() and part.isdigit() for part in name.replace("+", "_").split("_", 1)):
        raise ConfigError(f"job is {str(given)[:40]!r}", where=where, next=advice, code="config.wrong-value")
    return name


def _read_nodes(config: Mapping[str, Any]) -> list[str]:
    given = config.get("nodes")
    if given is None:
        return [os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]]
    names = [given] if isinstance(given, str) else given
    fits = (
        isinstance(names, list | tuple)
        and names
        and all(isinstance(name, str) and NODE.fullmatch(name) for name in names)
    )
    if not fits or len(set(names)) != len(names):
        where, advice = f"meter {label_of(config)}", 'give names of nodes: nodes = ["node07"]'
        raise ConfigError(f"nodes is {given!r}", where=where, next=advice, code="config.wrong-value")
    return list(names)
