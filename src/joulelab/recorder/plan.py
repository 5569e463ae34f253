"""Read the plan of a recording, and open the meters it names."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from joulelab.core.errors import ConfigError, JoulelabError, MeterError, MissingDependency, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from joulelab.core.spec import Meter

RECORDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class MeterPlan:
    """Name a meter and its configuration; `name` is what its files are called.

    One that is not `paced` keeps its own periods where none is configured, whatever the run's are.
    """

    meter: str
    name: str
    config: Mapping[str, Any] = field(repr=False)
    paced: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Say what to record where, and for whom; periods in seconds.

    `meters` None means those that a run opens unless told otherwise; `also` comes on top. `offers` are settings for
    every meter that knows the key (`visible`) or for one (`rapl.root`), where it is not configured otherwise.
    What libraries print goes to `log`. `usual` are the usual meters' names, where they were looked up before. The
    recorder says that it is ready when all meters have answered, or after `ready_s`. Configurations may hold secrets.
    """

    host_dir: Path
    host: str
    owner_pid: int
    segment: int = 0
    owner_start_ticks: int | None = None
    meters: Sequence[Mapping[str, Any]] | None = field(default=(), repr=False)
    also: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    period_s: float = 0.1
    slow_period_s: float = 1.0
    workload_pid: int | None = None
    offers: Mapping[str, Any] = field(default_factory=dict)
    log: str | None = None
    usual: Sequence[str] | None = None
    ready_s: float = 0.8

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan from one JSON line; raise ConfigError naming what is wrong."""
        try:
            data = dict(json.loads(text))
            known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
            known["host_dir"] = Path(known["host_dir"])
            return cls(**known)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                "the recorder's plan cannot be read", why=f"{type(error).__name__}: {error}", code="config.plan"
            ) from error

    def hidden(self) -> tuple[str, ...]:
        """Return the secrets among the configurations: whatever a meter says, they are not to be stored."""
        return tuple(secret for item in (*(self.meters or ()), *self.also) for secret in item.get("hide", ()))

    def all_meters(self) -> list[MeterPlan]:
        """Return every meter to open, each with a name of its own; raise ConfigError for an entry without a name."""
        items = self.meters
        if items is None:
            from joulelab.instruments import list_defaults

            items = [{"meter": name} for name in (self.usual if self.usual is not None else list_defaults())]
        plans: list[MeterPlan] = []
        for item in [*items, *self.also]:
            if not isinstance(item.get("meter"), str):
                raise ConfigError(f"an entry with the keys {sorted(item)} names no meter", code="config.plan")
            name = _free_name(item, [p.name for p in plans])
            plans.append(MeterPlan(item["meter"], name, item.get("config") or {}, item.get("paced", True)))
        return plans


def _free_name(item: Mapping[str, Any], taken: Sequence[str]) -> str:
    stem = Path(item["meter"]).name.removesuffix(".py").rpartition(".")[2]
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", item.get("name") or stem).strip("-") or "meter"
    name, k = base, 1
    while name in taken:
        k += 1
        name = f"{base}-{k}"
    return name


def open_meter(plan: Plan, wanted: MeterPlan) -> Meter:
    """Open a meter. Raises its JoulelabErrors; Unavailable or ConfigError if there is none of that name.

    Any other exception of the meter is raised as MeterError with its file and line, and an ImportError as
    MissingDependency.

    A plain name is a module of `joulelab.instruments` or an entry point. A meter of one's own needs no package:
    `path/to/file.py` or `package.module`, with `open_meter` in it, is enough.
    """
    try:
        module = find_module(wanted.meter)
        if callable(getattr(module, "open_meter", None)):
            config = _offered(plan, wanted, getattr(module, "CONFIG", ())) | dict(wanted.config)
            return cast("Meter", module.open_meter(config))
    except JoulelabError:
        raise
    except Exception as error:
        raise explain_exception(error, wanted) from error
    raise Unavailable(
        f"{wanted.meter} is not a meter", why="it has no function open_meter(config)", code="unavailable.not-a-meter"
    )


def explain_exception(error: Exception, wanted: MeterPlan) -> JoulelabError:
    """Return an error of the meter's code with its file and line, and the next step."""
    import traceback

    found = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    found = [(file, line) for file, line in found if Path(file).parent != RECORDER and not file.startswith("<")]
    # The first file is that of the meter, its last line the one to look at: below are libraries.
    place = [one for one in found if one[0] == found[0][0]][-1] if found else None
    if isinstance(error, SyntaxError) and error.filename:
        place = (error.filename, error.lineno)
    doctor = f"joulelab doctor {wanted.meter if wanted.paced else wanted.name}"
    what, why, then = f"{type(error).__name__}: {error}", None, f"correct the name {wanted.meter!r}"
    if place is not None:
        why = f"{place[0]}, line {place[1]}"
        is_own = not Path(place[0]).is_relative_to(RECORDER.parent)
        then = f"correct that line; see {doctor}" if is_own else f"see {doctor}"
    return (MissingDependency if isinstance(error, ImportError) else MeterError)(what, why=why, next=then)


def _offered(plan: Plan, wanted: MeterPlan, known: Container[str]) -> dict[str, Any]:
    pace = {"period_s": plan.period_s, "slow_period_s": plan.slow_period_s} if wanted.paced else {}
    offers = {**pace, "label": wanted.name, **plan.offers}
    mine = {k.removeprefix(f"{wanted.meter}."): v for k, v in offers.items() if v is not None}
    return {k: v for k, v in mine.items() if k in known}


def find_module(name: str) -> Any:
    """Return a meter's module by its name, dotted path or file; raise ConfigError or Unavailable where none is."""
    if name.endswith(".py"):
        return _load_file(Path(name))
    if "." in name:
        return importlib.import_module(name)
    from joulelab.instruments import find_meter

    return find_meter(name)


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"joulelab_meter_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Unavailable(f"no meter in {path}", why="there is no such file", code="unavailable.not-a-meter")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
