"""Join the runs of single nodes into one run, where each node of a job was recorded by a `joulelab run` of its own.

The new run holds copies of the node folders, unchanged, each with one more file of events: its clock pairs, and begin
and end of its command. Readers join the clocks by UTC. The source runs stay as they are.
"""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.analyse import find_span
from joulelab.analysis.channels import list_energy_specs
from joulelab.core.errors import ConfigError, StoreError
from joulelab.core.scope import find_family
from joulelab.core.version import __version__
from joulelab.store.imported import write_lines
from joulelab.store.manifest import read_records, write_manifest
from joulelab.store.run_folder import JOINED, RunState, create_run, end_run, find_host_dir
from joulelab.store.run_reader import open_run
from joulelab.store.verification import DAMAGED, verify_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EVENTS_FILE = "events.joined.jsonl"
TAKEN_KEYS = ("command", "cwd", "user", "python", "options", "environment", "twin", "started")
ENDING_KEYS = ("outcome", "exit_code", "signal")


@dataclass(frozen=True, slots=True)
class NodeRun:
    """Hold a closed run of one node: its documents, begin and end of its command, and its measured devices.

    Times are monotonic ns of the node. `devices` are names by an identity that no other device has.
    """

    path: Path
    meta: Mapping[str, Any]
    end: Mapping[str, Any]
    start_ns: int
    end_ns: int
    idle: tuple[int, int] | None
    devices: Mapping[tuple[str, ...], str]

    @property
    def host(self) -> str:
        """Return the name of the node."""
        return str(self.meta["host"])

    def to_utc_ns(self, t_ns: int) -> int:
        """Convert a time of this node to UTC, by the clock pair of its start."""
        return int(self.meta["started"]["utc_ns"]) + t_ns - int(self.meta["started"]["mono_ns"])

    @property
    def is_simulated(self) -> bool:
        """Return whether its meters were those of a twin."""
        return bool(self.meta.get("twin") or (self.meta.get("environment") or {}).get("JOULELAB_TWIN"))

    def list_events(self, place: int) -> list[dict[str, Any]]:
        """Return the events that the joined run needs in addition to the events of this run, the node at a `place`."""
        idle = {} if self.idle is None else {"from": self.idle[0], "to": self.idle[1]}
        times = {"start_ns": self.start_ns, "end_ns": self.end_ns, **idle}
        events = [
            {"t": pair["mono_ns"], "event": "clock", **pair} for pair in (self.meta["started"], self.end["ended"])
        ]
        about = {key: self.end.get(key) for key in ENDING_KEYS} | {"command": list(self.meta.get("command") or [])}
        return [*events, {"t": self.start_ns, "event": JOINED, "run": self.path.name, "place": place, **about, **times}]


def join_runs(
    runs: Path, sources: Sequence[Path], *, name: str | None = None, labels: Mapping[str, str] | None = None
) -> Path:
    """Write one run of the runs of several nodes into the store `runs`, and return its folder.

    The first source is the first node: its command, facts and options are those of the new run. Raises ConfigError for
    runs that are not of one job, StoreError for runs that cannot be read; then nothing is left behind.
    """
    nodes = [read_node_run(source) for source in sources]
    refuse_other_jobs(nodes)
    hosts = _name_hosts(nodes)
    first, labelled = nodes[0], [node.meta.get("labels") or {} for node in reversed(nodes)]
    own = {key: first.meta[key] for key in TAKEN_KEYS if key in first.meta}
    about = {
        "host": hosts[0],
        "name": first.meta.get("name") if name is None else name,
        "labels": {key: value for some in (*labelled, labels or {}) for key, value in some.items()},
        "joulelab": __version__,
        "joined": [{"run": node.path.name, "host": host} for node, host in zip(nodes, hosts, strict=True)],
    }
    run = create_run(runs, {**own, **about})
    try:
        rows: dict[str, int] = {}
        for node, host in zip(nodes, hosts, strict=True):
            _copy_node(node, run, host)
            records = {path: record.rows for path, record in read_records(node.path).items() if record.rows is not None}
            rows |= {f"{host}/{path.partition('/')[2]}": count for path, count in records.items()}
        every = {"t": first.start_ns, "event": "nodes", "step": "", "nodes": hosts, "count": len(hosts)}
        for k, (node, host) in enumerate(zip(nodes, hosts, strict=True)):
            rated_w = (node.meta.get("options") or {}).get("node", {}).get("rated_w") if k else None
            rated = {"t": node.start_ns, "event": "rated", "scope": "node.ac", "watts": rated_w}
            more = ([] if k else [every]) + ([] if rated_w is None else [rated])
            write_lines(find_host_dir(run, host) / EVENTS_FILE, [*node.list_events(k), *more])
        end_run(run, _describe_end(nodes))
        write_manifest(run, rows)
    except BaseException as error:
        shutil.rmtree(run, ignore_errors=True)
        if isinstance(error, OSError):  # shutil.Error is one, too
            raise StoreError(
                "cannot copy the runs", where=str(runs), why=str(error), code="store.not-copied"
            ) from error
        raise
    return run


def read_node_run(path: Path) -> NodeRun:
    """Read a run to be joined. Raises ConfigError if it is not the closed run of one node, StoreError if damaged."""
    with open_run(path) as run:
        end, hosts = run.end, run.hosts
        what, where = "the run cannot be joined", str(path)
        if run.state is not RunState.CLOSED or end is None or "ended" not in end:
            why, then = "it has no recorded end", "join runs that have ended"
            raise ConfigError(what, where=where, why=why, next=then, code="config.not-ended")
        if len(hosts) != 1 or hosts[0] != run.meta.get("host") or "imported" in run.meta:
            why = "it was imported" if "imported" in run.meta else f"it holds {', '.join(hosts)}"
            then = "join runs of `joulelab run`, each of one node"
            raise ConfigError(what, where=where, why=why, next=then, code="config.not-one-node")
        if verify_run(path.parent, str(path)).status == DAMAGED:
            raise StoreError("a file of the run is damaged", where=str(path), next=f"joulelab verify {path.name}",
                             code="store.damaged")  # fmt: skip
        span = find_span(run, list(run.events()))
        twin = str((run.meta.get("environment") or {}).get("JOULELAB_TWIN", ""))
        boot = str(run.meta["started"].get("boot_id", ""))
        devices: dict[tuple[str, ...], str] = {}
        for stream in (s for table in run.tables() for s in table.streams if list_energy_specs(s)):
            # A GPU has a UUID; of other devices only one machine is known to have one of each name.
            is_unique = find_family(stream.scope) == "gpu" and stream.device
            devices[(twin, stream.device) if is_unique else (twin, boot, stream.scope)] = stream.scope
        return NodeRun(path, run.meta, end, span.start_ns, span.end_ns, span.idle, devices)


def refuse_other_jobs(nodes: Sequence[NodeRun]) -> None:
    """Raise ConfigError unless these are runs of several nodes at the same time, each device in one of them."""
    if len(nodes) < 2:
        raise ConfigError("one run is named", next="name the run of each node: joulelab join RUN RUN...",
                          code="config.one-run")  # fmt: skip
    for k, node in enumerate(nodes):
        for other in nodes[:k]:
            if node.path.resolve() == other.path.resolve():
                raise ConfigError(
                    f"{node.path.name} is named twice", next="name each run once", code="config.run-twice"
                )
            shared = [name for identity, name in node.devices.items() if identity in other.devices]
            if shared:
                what = f"{', '.join(shared)} would count twice"
                why = f"{other.path.name} and {node.path.name} measured the same devices ({other.host}, {node.host})"
                then = "join one run of each node: only the first process of a node records"
                raise ConfigError(what, why=why, next=then, code="config.counted-twice")
    simulated = [node for node in nodes if node.is_simulated]
    if 0 < len(simulated) < len(nodes):
        why = f"{', '.join(node.path.name for node in simulated)}: simulated by a twin; the others are not"
        then = "join runs that are all measured, or all simulated"
        raise ConfigError("a total would be neither measured nor simulated", why=why, next=then,
                          code="config.partly-simulated")  # fmt: skip
    begun = max(nodes, key=lambda node: node.to_utc_ns(node.start_ns))
    ended = min(nodes, key=lambda node: node.to_utc_ns(node.end_ns))
    if begun.to_utc_ns(begun.start_ns) >= ended.to_utc_ns(ended.end_ns):
        why = f"{begun.path.name} began at {_word_utc(begun, begun.start_ns)}, after {ended.path.name} had ended"
        then = "join runs of the same job; if it was one job, the clock of a node is wrong: chronyc tracking"
        raise ConfigError("the runs are not of one job", why=f"{why} at {_word_utc(ended, ended.end_ns)}", next=then,
                          code="config.not-one-job")  # fmt: skip


def _word_utc(node: NodeRun, t_ns: int) -> str:
    return dt.datetime.fromtimestamp(node.to_utc_ns(t_ns) * 1e-9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _name_hosts(nodes: Sequence[NodeRun]) -> list[str]:
    """Return a folder name for each node: several machines may have the same host name."""
    names: list[str] = []
    for node in nodes:
        name, number = node.host, 1
        while name in names:
            number += 1
            name = f"{node.host}-{number}"
        names.append(name)
    return names


def _copy_node(node: NodeRun, run: Path, host: str) -> None:
    source = find_host_dir(node.path, node.host)
    shutil.copytree(
        source, find_host_dir(run, host), symlinks=True, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True
    )


def _describe_end(nodes: Sequence[NodeRun]) -> dict[str, Any]:
    """Return the end of the joined run: the outcome of the first node that failed, else of the first node."""
    first = nodes[0]
    failed = [n for n in nodes if (n.end.get("outcome"), n.end.get("exit_code")) != ("exit", 0)]
    worst = (failed or nodes)[0].end
    outcome = {key: worst.get(key) for key in ENDING_KEYS}
    messages = [f"{node.host}: {node.end['message']}" for node in nodes if node.end.get("message")]
    to_first = first.to_utc_ns(0)
    return {
        **outcome,
        "start_ns": min(node.to_utc_ns(node.start_ns) for node in nodes) - to_first,
        "end_ns": max(node.to_utc_ns(node.end_ns) for node in nodes) - to_first,
        "ended": dict(first.end["ended"]),
        "restarts": sum(int(node.end.get("restarts") or 0) for node in nodes),
        "message": "; ".join(messages) or None,
    }
