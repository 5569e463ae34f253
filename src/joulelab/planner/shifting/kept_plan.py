"""Keep a plan as JSON: the job, the forecast it was made by, what was chosen and what it was to cost, and reviews."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.planner.rates.rate import Label
from joulelab.planner.shifting.baselines import Terms, Way, gain, saved
from joulelab.planner.shifting.blocks import Restart
from joulelab.planner.shifting.errors import Scatter
from joulelab.planner.shifting.job import (
    Job,
    job_from_json,
    job_to_json,
    quantity_from_json,
    quantity_to_json,
)
from joulelab.planner.shifting.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
FOLDER = Path("joulelab-plans")
MOST_BYTES = 64_000_000


@dataclass(frozen=True)
class Plan:
    """Hold a plan: what was asked, every way to run the job, and which was chosen; `reviews` are plain data.

    `scatter` is how far earlier forecasts of the same series were off, for the gain of the way that was chosen.
    """

    id: str
    made_utc: str
    job: Job
    slots: Slots
    terms: Terms
    ways: tuple[Way, ...]
    chosen: str
    reviews: tuple[Mapping[str, Any], ...] = field(default=())
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
            "scatter": None if self.scatter is None else self.scatter.to_json(), "reviews": list(self.reviews),
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


def _way(data: Mapping[str, Any]) -> Way:
    return Way(
        data["name"], data["start_utc_s"], data["end_utc_s"], np.array(data["energy_by_slot_j"], dtype=float),
        np.array(data["running_s"], dtype=float), np.array(data["paused_s"], dtype=float),
        np.array(data["modes_s"], dtype=float), int(data["restarts"]), quantity_from_json(data["cost"]),
        quantity_from_json(data["energy_j"]), data["cost_by_nameplate"], data["cap_w"],
    )  # fmt: skip


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


def find_plan(word: str, folder: Path = FOLDER) -> Path:
    """Return the file of a plan: by its path, its id, the beginning of it, or `last`. Raises ConfigError."""
    path = Path(word)
    if path.suffix == ".json" and path.is_file():
        return path
    kept = sorted(folder.glob("*.json")) if folder.is_dir() else []
    found = kept[-1:] if word == "last" else [one for one in kept if one.stem.startswith(word)]
    if len(found) == 1 or (found and found[0].stem == word):
        return found[0]
    what = f"{word!r} is several plans" if found else f"there is no plan {word!r}"
    near = ", ".join(one.stem for one in (found or kept)[-5:])
    why = f"there are {near}" if near else "none was kept there"
    raise ConfigError(what, where=str(folder), why=why, next="joulelab plan when ... --keep")


def read_plan(path: Path) -> Plan:
    """Return a plan that was kept. Raises ConfigError where the file is none, or newer than this joulelab."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError("too large to be a plan", where=str(path))
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError("the plan cannot be read", where=str(path), why=error.strerror) from None
    except (ValueError, RecursionError):
        raise ConfigError("not a plan of joulelab's", where=str(path), why="it is not JSON") from None
    schema = data.get("joulelab_plan") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise ConfigError("not a plan of joulelab's", where=str(path), next="name one that `plan when --keep` wrote")
    if schema > SCHEMA:
        raise ConfigError("the plan is of a newer joulelab", where=str(path), next="update joulelab")
    try:
        return _plan(data)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise ConfigError("the plan is damaged", where=str(path), why=f"{type(error).__name__}: {error}") from None


def _plan(data: Mapping[str, Any]) -> Plan:
    if not re.fullmatch(r"[\w-]{1,64}", data["id"]):
        raise ValueError("id")
    rate, again = data["rate"], data["restart"]
    label = Label(**{**rate["label"], "notes": tuple(rate["label"]["notes"])})
    slots = Slots(np.array(rate["edges_utc_s"], dtype=float), np.array(rate["values_per_kwh"], dtype=float), label)
    off = float(data.get("pue_expanded", 0.0)) / 2  # plans of earlier joulelabs have none
    terms = Terms(Restart(again["time_s"], again["energy_j"]), bool(data["node_waits"]), float(data["pue"]), off)
    ways = tuple(_way(way) for way in data["ways"])
    plan = Plan(
        data["id"], data["made_utc"], job_from_json(data["job"]), slots, terms, ways, data["chosen"],
        tuple(data["reviews"]), Scatter(tuple(map(float, data["scatter"]["gains"]))) if data["scatter"] else None,
    )  # fmt: skip
    if any(len(way.energy_j) != len(slots.values) for way in (*ways, plan.way)):
        raise ValueError("slots")
    return plan


def with_review(plan: Plan, review: Mapping[str, Any]) -> Plan:
    """Return the plan with one more review."""
    return replace(plan, reviews=(*plan.reviews, review))
