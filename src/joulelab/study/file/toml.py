"""Write a sweep as a study file."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.config.toml_writing import format_key, format_table
from joulelab.study.folder import Settings

if TYPE_CHECKING:
    from joulelab.study.folder import Plan
    from joulelab.study.values import Value


def write_sweep(plan: Plan, name: str) -> str:
    """Return a sweep as the text of a study file: the same knobs and settings. Raises ConfigError."""
    workload = plan.cells[0].workload
    if any("\udc80" <= sign <= "\udcff" for word in workload.command for sign in word):
        raise ConfigError("the command is no text", where="study file", why="it has bytes that are not UTF-8")
    knobs: dict[str, dict[Value, None]] = {}
    for cell in plan.cells:
        for knob, value in cell.knobs.items():
            knobs.setdefault(knob, {})[value] = None
    if plan.file is not None or math.prod(len(values) for values in knobs.values()) != len(plan.cells):
        raise ConfigError("only a sweep can be written as a study file", where="study file")
    parts = [format_table("", _top(plan, name))]
    if knobs:
        parts.append(format_table("knobs", {knob: [_plain(v) for v in values] for knob, values in knobs.items()}))
    own: dict[str, Any] = {"command": list(workload.command)}
    if plan.work:
        own["work"] = [each["pattern"] for each in plan.work]
        own |= {"work_sum": True} if plan.work[0]["add"] else {}
    parts.append(format_table(f"workloads.{format_key(name)}", own))
    return "\n".join(parts)


def _top(plan: Plan, name: str) -> dict[str, Any]:
    reference = {key: _referred(plan, key, value) for key, value in plan.reference.items()}
    wanted = {
        "name": name,
        "repeats": plan.repeats,
        "warmup": plan.warmup or None,
        "goals": list(plan.goals),
        "reference": reference or None,
        "scope": plan.scope,
        "per": plan.per,
        **_how(plan.settings),
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _how(settings: Settings) -> dict[str, Any]:
    usual = Settings()
    cool = f"{_number(settings.cool_c)}C" if settings.cool_c is not None else _time(settings.cool_s or None)
    limit_s = None if settings.cool_limit_s == usual.cool_limit_s else settings.cool_limit_s
    return {
        "idle": _time(settings.idle_s),
        "cool": cool,
        "cool_limit": _time(limit_s),
        "timeout": _time(settings.timeout_s),
        "period": _time(settings.period_s),
        "meters": list(settings.meters) or None,
        "no_meters": list(settings.without) or None,
        "config": settings.config,
        "estimate": settings.estimate or None,
        "rated_cpu": settings.rated_cpu_w,
    }


def _referred(plan: Plan, knob: str, wanted: Any) -> Any:
    """Return a value of the reference as it is typed."""
    return next(_plain(cell.knobs[knob]) for cell in plan.cells if cell.knobs[knob].value == wanted)


def _plain(value: Value) -> int | str:
    """Return a value as the file has it: whole numbers, and texts for all that a number might not give back."""
    return int(value.text) if value.text.isdecimal() and str(int(value.text)) == value.text else value.text


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{_number(seconds)}s"


def _number(number: float) -> str:
    text = f"{Decimal(repr(number)):f}"
    return text.removesuffix(".0")
