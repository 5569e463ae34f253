"""A store with runs of every kind, a study, and a real server on loopback over them."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.report.synthetic import NOBODY, STARTED, epochs, make_run
from tests.study.bench import make_study, place

from joulelab.core.clock import NS
from joulelab.dashboard.index import LOOK_S, Index
from joulelab.dashboard.security import Doors
from joulelab.dashboard.server import in_background
from joulelab.store.manifest import write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.dashboard.run_table import Snapshot

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
BIDI = "\u202egpj.exe"
END = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}


def started(hours_ago: float) -> dict[str, Any]:
    """Return when a run started: hours before 16 November 2026, 00:00 UTC."""
    return {**STARTED, "utc_ns": int((1_794_787_200 - hours_ago * 3600) * NS)}


@dataclass(frozen=True)
class Stores:
    """Say where things are, and which run is which."""

    root: Path
    runs: Path
    studies: Path
    ids: dict[str, str]


def fill(root: Path) -> Stores:
    """Make a store: two to compare, one live, one killed, one failed, one simulated, hostile ones, broken ones."""
    runs, studies = root / "joulelab-runs", root / "joulelab-studies"
    short: dict[str, Any] = {"seconds": 2.0, "gpus": 1, "cpus": 0}
    words, labels = (
        ["</script><script>alert(4)</script>", BIDI],
        {"<script>alert(2)</script>": '"><svg onload=alert(3)>'},
    )
    made = {
        "first": make_run(runs, name="resnet", labels={"batch": "64"}, started=started(1), marks=epochs(2, 2), **short),
        "second": make_run(runs, name="resnet", labels={"batch": "128"}, started=started(2), gpu_w=450.0, **short),
        "live": make_run(runs, name="going", started=started(3), state="live", **short),
        "none": make_run(runs, name="bare", started=started(33), seconds=2.0, gpus=0, cpus=0),
    }
    made |= {
        "killed": copied(made["live"], 30, name="cut", owner=NOBODY),
        "failed": copied(made["second"], 31, {"exit_code": 3}, name="bad", labels={}),
        "twin": copied(made["second"], 32, name=None, labels={}, twin={"name": "h100x8"}, command=["/opt/bin/burn"]),
        "hostile": copied(made["second"], 34, name=HOSTILE, labels=labels, command=words),
        "long": copied(made["second"], 35, name="x" * 3000, labels={}, command=["python", "y" * 3000]),
    }
    made["torn"] = shutil.copytree(made["none"], runs / "20261101-000000-0001")
    (made["torn"] / "run.json").write_text('{"name": ')
    made["empty"] = runs / "20261101-000001-0002"
    made["empty"].mkdir()
    os.utime(made["empty"], (1, 1))  # what is younger is being made
    secret = root / "outside"
    shutil.copytree(made["none"], secret / "20261101-000002-0003")
    made["link"] = runs / "20261101-000002-0003"
    made["link"].symlink_to(secret / made["link"].name)
    made["inner"] = shutil.copytree(made["none"], runs / "20261101-000003-0004")
    (made["inner"] / "secrets").symlink_to(secret)
    fill_study(studies)
    return Stores(root, runs, studies, {name: path.name for name, path in made.items()})


def copied(run: Path, hours_ago: float, end: dict[str, Any] | None = None, **meta: Any) -> Path:
    """Copy a run beside itself, as if it had started so long ago and was of something else; making one takes longer."""
    begun = started(hours_ago)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(begun["utc_ns"] // NS))
    copy = shutil.copytree(run, run.parent / f"{stamp}-c0de")
    changes = {"run.json": {"id": copy.name, "started": begun, **meta}, **({"end.json": end} if end else {})}
    for name, change in changes.items():
        (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | change))
    write_manifest(copy, {}, changes)
    return copy


def fill_study(studies: Path) -> None:
    """Make a study of three cells: one done, one failed, one to come; and one that is damaged."""
    study = make_study(studies / "sweep", "true", "{n}", knobs={"n": "1,2,3"})
    keys = list(study.read_cells())
    slot = place(study.get_slot_folder(keys[0], 1), {"ticks": 1}, END)
    (old,) = (path for path in slot.iterdir() if (path / "run.json").exists())
    shutil.rmtree(old)
    make_run(slot, seconds=1.0, gpus=1, cpus=0, started=started(5), name="in a study")
    place(study.get_slot_folder(keys[1], 1), {"ticks": 1}, END | {"exit_code": 3})
    torn = studies / "torn"
    torn.mkdir()
    (torn / "study.json").write_text("[]")


@dataclass
class Asked:
    """Ask a server, and keep it."""

    url: str
    client: httpx.Client
    index: Index
    stores: Stores

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Return the answer to a GET."""
        return self.client.get(path, **options)


@pytest.fixture(scope="package")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Return a store with runs of every kind; nobody changes it."""
    return fill(tmp_path_factory.mktemp("dashboard"))


class Driven:
    """Look and work by hand in virtual time, as the two threads of an index do; each look at the clock takes a tick."""

    def __init__(self, runs: Path, studies: Path | None = None, *, tick_s: float = 0.0) -> None:
        self.now, self._tick_s = 0.0, tick_s
        self.index = Index(runs, studies, clock=self._clock)

    def _clock(self) -> float:
        self.now += self._tick_s
        return self.now

    def go_on(self, seconds: float = LOOK_S) -> Snapshot:
        """Let so much time pass, look once and work out all that is due."""
        self.now += seconds
        self.index.look()
        while self.index.work():
            pass
        return self.index.snapshot()

    def waits_for(self, run: Path) -> bool:
        """Return whether a run is still to be read."""
        return not self.index.snapshot().by_id[run.name].is_complete


@pytest.fixture(scope="package")
def indexed(stores: Stores) -> Index:
    """Return an index that has seen all of the store."""
    driven = Driven(stores.runs, stores.studies)
    for _ in range(2):  # what cannot be read is read twice
        driven.go_on()
    return driven.index


@pytest.fixture(scope="module")
def served(stores: Stores) -> Iterator[Asked]:
    """Serve the store without a token; no quick test of another file runs beside the server."""
    with (
        in_background(stores.runs, stores.studies, Doors()) as (server, index),
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        index.settled()
        yield Asked(server.url, client, index, stores)
