"""Hold the options of a run, and what the environment says about it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import read_boot_id
from joulelab.core.errors import StoreError
from joulelab.store.documents import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapRequest
    from joulelab.run.config.meter_choice import MeterChoice

RUNS_VARIABLE = "JOULELAB_RUNS"
RUN_VARIABLE = "JOULELAB_RUN"
HOST_VARIABLE = "JOULELAB_HOST"
# Meters of the configuration load libraries and wait for devices: so long at most, and only as long as they need.
OPEN_S, READY_S = 9.5, 10.0


def get_runs_folder(environ: Mapping[str, str]) -> Path:
    """Return the store of runs: JOULELAB_RUNS, or `joulelab-runs` here."""
    return Path(environ.get(RUNS_VARIABLE) or "joulelab-runs")


def get_host_name(environ: Mapping[str, str] | None = None) -> str:
    """Return the name of this host's folder in a run: in a job that of the node, of which a host may have several."""
    node = get_node_name(os.environ if environ is None else environ)
    return node or _make_file_name(os.uname().nodename) or "localhost"


def get_node_name(environ: Mapping[str, str]) -> str:
    """Return the name that Slurm gives this node, fit for a folder; empty outside of a job."""
    return _make_file_name(environ.get("SLURMD_NODENAME", "")) if environ.get("SLURM_JOB_ID") else ""


def _make_file_name(name: str) -> str:
    return name.lstrip(".").replace("/", "-").replace("\0", "")


def find_marks_folder(environ: Mapping[str, str]) -> Path | None:
    """Return where processes of a recorded run write their marks, None where nothing is recorded.

    On another node of a job than the run's own that is the node's folder: its time is another. Where that node is not
    recorded, there is no such folder.
    """
    run, node = environ.get(RUN_VARIABLE), get_node_name(environ)
    if not run:
        return None
    host = environ.get(HOST_VARIABLE) or get_host_name(environ)
    elsewhere = node not in ("", host) and ((Path(run) / node).is_dir() or not _is_of_this_boot(Path(run)))
    return Path(run) / (node if elsewhere else host) / "marks"


def _is_of_this_boot(run: Path) -> bool:
    try:
        return bool(read_json(run / "run.json")["started"]["boot_id"] == read_boot_id())
    except (StoreError, KeyError, TypeError):
        return True  # as far as anybody knows


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Say how to record a run; times in seconds.

    `meters` None opens what a run opens unless told otherwise; entries are {"meter": name, "config": {...}}. `also`
    comes on top (an estimate, what is configured); both may hold secrets. `configured` are the names of entries of the
    configuration, each with its module and what it feeds. `idle_s` is recorded before the workload, `tail_s` bounds the
    wait for meters after it. Meters have `open_s` to answer; the workload starts after `ready_s` even if the recorder
    is late, after `nodes_s` if those of other nodes are; a recorder is killed if it has not flushed `flush_s` after the
    tail. `caps` are set before the workload starts and put back after it. `preload` names modules that the caller will
    need then, to be imported meanwhile. `chosen_by` are the file and the names by which meters were chosen: other nodes
    choose theirs so. `node` is what the configuration says of the node's power (`rated_w`, `planned_w`, in W). `lost`
    are configured meters that cannot be read because their entries are wrong: `meter`, `what`, `why`, `next`.
    """

    runs: Path
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    meters: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False)
    also: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    configured: Sequence[Mapping[str, str]] = ()
    period_s: float = 0.1
    slow_period_s: float = 1.0
    idle_s: float = 0.0
    tail_s: float = 0.3
    open_s: float = 0.8
    ready_s: float = 1.0
    nodes_s: float = READY_S
    edge_s: float = 1.0
    flush_s: float = 6.0
    capture: Path | None = None
    caps: Sequence[CapRequest] = ()
    analyse: bool = True
    seal_limit: int = 64 << 20
    seal_from_s: float = 60.0
    preload: Sequence[str] = ()
    chosen_by: Mapping[str, Any] | None = None
    node: Mapping[str, float] = field(default_factory=dict)
    lost: Sequence[Mapping[str, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what `run.json` keeps of the options."""
        kept = ("period_s", "slow_period_s", "idle_s", "tail_s")
        chosen = {k: getattr(self, k) for k in kept}
        chosen["meters"] = None if self.meters is None else [m["meter"] for m in self.meters]
        chosen["configured"] = [dict(entry) for entry in self.configured]
        chosen["caps"] = [{"device": w.device, "value": w.value, "unit": w.unit} for w in self.caps]
        chosen |= {"node": dict(self.node)} if self.node else {}
        return chosen | {"estimate": any(m["meter"] == "estimate" for m in self.also)}

    def reading(
        self,
        chosen: MeterChoice,
        *,
        file: Path | None = None,
        wanted: Sequence[str] | None = None,
        without: Sequence[str] = (),
    ) -> RunOptions:
        """Return the same with chosen meters; those of the configuration may take longer to open.

        `file`, `wanted` and `without` are what they were chosen by, where other nodes are to choose so too.
        """
        by: dict[str, Any] | None = None
        if wanted is not None:
            path = None if file is None else str(file.absolute())
            by = {"file": path, "wanted": list(wanted), "without": list(without)}
        lost = [meter.to_json() for meter in chosen.lost]
        if not chosen.entries:
            return replace(self, meters=chosen.meters, chosen_by=by, node=chosen.node, lost=lost)
        named = [{"name": e.name, "meter": e.meter, "feeds": e.feeds} for e in chosen.entries]
        also = [*self.also, *chosen.also]
        read = replace(self, meters=chosen.meters, also=also, configured=named, chosen_by=by, node=chosen.node)
        return replace(read, open_s=OPEN_S, ready_s=READY_S, lost=lost)

    def offers(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what the environment offers to meters."""
        names = {
            "visible": "CUDA_VISIBLE_DEVICES",
            "device_order": "CUDA_DEVICE_ORDER",
            "rapl.root": "JOULELAB_POWERCAP",
        }
        return {key: environ[name] for key, name in names.items() if name in environ}
