"""Hold the options of a run, and read the variables of its environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import read_boot_id
from joulelab.core.errors import StoreError
from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.store.documents import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapRequest
    from joulelab.run.config.meter_choice import MeterChoice

RUNS_VARIABLE = "JOULELAB_RUNS"
HOST_VARIABLE = "JOULELAB_HOST"
# Meters of the configuration load libraries and wait for devices: limits in s, waited for only as long as needed.
OPEN_S, READY_S = 9.5, 10.0
# Settings that meters take from the environment.
OFFERED_VARIABLES = {
    "visible": "CUDA_VISIBLE_DEVICES",
    "device_order": "CUDA_DEVICE_ORDER",
    "rapl.root": "JOULELAB_POWERCAP",
}


def get_runs_folder(environ: Mapping[str, str]) -> Path:
    """Return the store of runs: JOULELAB_RUNS, or `joulelab-runs` here."""
    return Path(environ.get(RUNS_VARIABLE) or "joulelab-runs")


def get_host_name(environ: Mapping[str, str] | None = None) -> str:
    """Return the name of this host's folder in a run: in a Slurm job the name of the node."""
    node = get_node_name(os.environ if environ is None else environ)
    return node or _make_file_name(os.uname().nodename) or "localhost"


def get_node_name(environ: Mapping[str, str]) -> str:
    """Return Slurm's name of this node, usable as a folder name; empty outside of a job."""
    return _make_file_name(environ.get("SLURMD_NODENAME", "")) if environ.get("SLURM_JOB_ID") else ""


def _make_file_name(name: str) -> str:
    return name.lstrip(".").replace("/", "-").replace("\0", "")


def find_marks_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for the marks of this process, None where no run is recorded.

    On another node of a job it is the folder of that node, whose clock is another one; it is missing if that node is
    not recorded.
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
        return True  # nothing known says otherwise


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Hold how to record a run; times in seconds.

    Which meters:
    `meters` are {"meter": name, "config": {...}}, None for the usual ones; `also` are read in addition (an estimate,
    configured meters). Both may hold secrets. `configured` names the entries of the configuration, each with its
    module and the scope it feeds. `lost` are configured meters that cannot be read because their entries are wrong:
    `meter`, `what`, `why`, `next`. `chosen_by` holds the file and the names by which meters were chosen, so that other
    nodes choose in the same way; `named` are the meters among them that were asked for by name. `node` is the node's
    `rated_w` and `planned_w` (W) from the configuration, `site` its price, carbon intensity and PUE.

    When:
    `idle_s` is recorded before the workload; `tail_s` limits the wait for meters after it. Meters have `open_s` to
    answer. The workload starts after `ready_s` even if the recorder is late, after `nodes_s` if other nodes are late.
    A recorder is killed if it has not written everything `flush_s` after the tail.

    `caps` are set before the workload starts and restored after it. `preload` names modules that the caller needs
    after the run; they are imported while the workload runs.
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
    site: Mapping[str, Any] = field(default_factory=dict)
    lost: Sequence[Mapping[str, str]] = ()
    named: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the options that `run.json` holds."""
        chosen: dict[str, Any] = {key: getattr(self, key) for key in ("period_s", "slow_period_s", "idle_s", "tail_s")}
        chosen["meters"] = None if self.meters is None else [m["meter"] for m in self.meters]
        chosen["named"] = list(self.named)
        chosen["configured"] = [dict(entry) for entry in self.configured]
        chosen["caps"] = [{"device": w.device, "value": w.value, "unit": w.unit} for w in self.caps]
        chosen |= {"node": dict(self.node)} if self.node else {}
        chosen |= {"site": dict(self.site)} if self.site else {}
        return chosen | {"estimate": any(m["meter"] == "estimate" for m in self.also)}

    def with_times(self, times: Mapping[str, float | None]) -> RunOptions:
        """Return the options with `period_s`, `idle_s` and `tail_s` as far as they are given."""
        given: dict[str, Any] = {key: value for key, value in times.items() if value is not None}
        slow_period_s = max(self.slow_period_s, given.get("period_s", self.period_s))
        return replace(self, **given, slow_period_s=slow_period_s)

    def with_meters(
        self,
        choice: MeterChoice,
        *,
        file: Path | None = None,
        wanted: Sequence[str] | None = None,
        without: Sequence[str] = (),
    ) -> RunOptions:
        """Return the options with chosen meters; configured ones may take longer to open.

        `file`, `wanted` and `without` led to the choice; other nodes choose their meters by them.
        """
        by: dict[str, Any] | None = None
        if wanted is not None:
            path = None if file is None else str(file.absolute())
            by = {"file": path, "wanted": list(wanted), "without": list(without)}
        lost = [meter.to_json() for meter in choice.lost]
        site = choice.site.to_json() if choice.site else {}
        options = replace(
            self, meters=choice.meters, chosen_by=by, node=choice.node, site=site, lost=lost, named=tuple(choice.named)
        )
        if not choice.entries:
            return options
        named = [{"name": e.name, "meter": e.meter, "feeds": e.feeds} for e in choice.entries]
        also = [*self.also, *choice.also]
        return replace(options, also=also, configured=named, open_s=OPEN_S, ready_s=READY_S)


def read_offers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the environment offers to meters."""
    return {key: environ[name] for key, name in OFFERED_VARIABLES.items() if name in environ}
