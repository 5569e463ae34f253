"""Keep a plan as JSON: the job, the forecast it was made by, what was chosen and what it was to cost."""

from __future__ import annotations

import datetime as dt
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.plan.when.baselines import gain, saved
from joulelab.plan.when.job import job_to_json, quantity_to_json

if TYPE_CHECKING:
    from joulelab.plan.when.baselines import Terms, Way
    from joulelab.plan.when.errors import Scatter
    from joulelab.plan.when.job import Job
    from joulelab.plan.when.slots import Slots

SCHEMA = 2  # 1 held reviews too
FOLDER = Path("joulelab-plans")


@dataclass(frozen=True)
class Plan:
    """Hold a plan: what was asked, every way to run the job, and which was chosen.

    `scatter` is how far earlier forecasts of the same series were off, for the gain of the way that was chosen.
    """

    id: str
    made_utc: str
    job: Job
    slots: Slots
    terms: Terms
    ways: tuple[Way, ...]
    chosen: str
    scatter: Scatter | None = None

    @property
    def way(self) -> Way:
        """Return the way that was chosen."""
        return next(way for way in self.ways if way.name == self.chosen)

    @property
    def now(self) -> Way:
        """Return what the others are held against."""
        return self.ways[0]

    @property
    def unit(self) -> str:
        """Return the unit of costs: g, or a currency."""
        return self.slots.label.unit.partition("/")[0]

    def to_json(self) -> dict[str, Any]:
        """Return the whole plan as plain data."""
        return {
            "joulelab_plan": SCHEMA, "id": self.id, "made_utc": self.made_utc, "simulated": bool(self.job.twin),
            "unit": self.unit, "kind": self.slots.label.kind, "job": job_to_json(self.job),
            "rate": {
                "label": self.slots.label.to_json(), "edges_utc_s": self.slots.edges_s.tolist(),
                "values_per_kwh": self.slots.values.tolist(),
            },
            "time_zone": self.slots.label.time_zone, "pue": self.terms.pue,
            "pue_expanded": 2 * self.terms.pue_u, "node_waits": self.terms.waits,
            "restart": {"time_s": self.terms.restart.time_s, "energy_j": self.terms.restart.energy_j},
            "ways": [way_to_json(way, self.now, self.job) for way in self.ways], "chosen": self.chosen,
            "scatter": None if self.scatter is None else self.scatter.to_json(),
        }  # fmt: skip


def way_to_json(way: Way, against: Way, job: Job) -> dict[str, Any]:
    """Return a way as plain data, with what it saves against another."""
    share = gain(way, against)
    return {
        "name": way.name, "title": way.title, "start_utc_s": way.start_s, "end_utc_s": way.end_s,
        "cost": quantity_to_json(way.cost, sure=job.sure),
        "energy_j": quantity_to_json(way.energy, sure=job.sure), "cost_by_nameplate": way.rated,
        "saved": quantity_to_json(saved(way, against, job), sure=job.sure),
        "gain": None if share is None else quantity_to_json(share),
        "cap_w": way.cap_w, "restarts": way.restarts, "running_s": way.running_s.tolist(),
        "paused_s": way.paused_s.tolist(), "modes_s": way.modes_s.tolist(), "energy_by_slot_j": way.energy_j.tolist(),
    }  # fmt: skip


def new_id(now_s: float) -> str:
    """Return a name for a plan: when it was made, and four random digits."""
    return f"{dt.datetime.fromtimestamp(now_s, dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def keep(plan: Plan, folder: Path = FOLDER) -> Path:
    """Write a plan whole or not at all; return the file. Raises ConfigError."""
    path = folder / f"{plan.id}.json"
    data = json.dumps(plan.to_json(), ensure_ascii=False, allow_nan=False).encode()
    part = folder / f".{plan.id}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError("the plan cannot be kept", where=str(path), why=error.strerror, next="set --plans") from None
    return path
