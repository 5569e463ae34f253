"""Read the top of a study file: how slots are run, and how the study is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.analysis.goal import Goal
from joulelab.core.errors import ConfigError
from joulelab.run.config.problems import is_number, show
from joulelab.study.folder import Settings, check_name
from joulelab.study.values import cooling

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.run.config.problems import Table

HOW = (
    "idle", "cool", "cool_limit", "timeout", "period", "meters", "no_meters", "config", "estimate", "rated_cpu",
)  # fmt: skip
KEYS = (
    "name", "repeats", "warmup", "seed", "goals", "reference", "scope", "per", *HOW, "knobs", "skip", "workloads",
    "nodes",
)  # fmt: skip
GOALS = ("energy", "edp")
SHORTEST_S = 0.001
REPEATS = 3


def read_settings(top: Table, folder: Path) -> Settings:
    """Return how slots are run; the configuration's file is looked for beside the study file."""
    usual = Settings()
    limit_s = top.time("cool_limit")
    estimate, rated_w = top.flag("estimate"), top.positive("rated_cpu")
    if rated_w is not None and not estimate:
        top.wrong("rated_cpu", "rated_cpu is for an estimate", next="add estimate = true")
    return Settings(
        idle_s=top.time("idle"),
        period_s=top.time("period", SHORTEST_S),
        meters=top.texts("meters") or (),
        without=top.texts("no_meters") or (),
        config=_config(top, folder),
        cool_limit_s=usual.cool_limit_s if limit_s is None else limit_s,
        timeout_s=top.time("timeout", SHORTEST_S),
        estimate=bool(estimate),
        rated_cpu_w=rated_w,
        **_cool(top),
    )


def _cool(top: Table) -> dict[str, Any]:
    if "cool" not in top:
        return {}
    value = top.values["cool"]
    then = "write 45C for a temperature of the GPUs, 60s for a time"
    if not isinstance(value, str) and not is_number(value):
        top.wrong("cool", f"cool is {show(value)}", next=then)
        return {}
    try:
        key, number = cooling(value)
    except ConfigError as error:
        top.wrong("cool", f"cool: {error.what}", next=then)
        return {}
    return {key: number}


def _config(top: Table, folder: Path) -> str | None:
    name = top.text("config")
    if name is None:
        return None
    file = folder / name
    if not file.is_file():
        top.wrong(
            "config", f"there is no file {name}", why=f"looked for in {folder}", next="it is relative to this file"
        )
    return str(file)


def read_name(top: Table, stem: str) -> str:
    """Return the study's name: by default that of its file."""
    name = top.text("name") or stem
    try:
        check_name(name)
    except ConfigError as error:
        if "name" in top:
            top.problems.add_error((*top.at, "name"), error)
        else:
            top.wrong("", f"{error.what}: the file's name", next='add name = "..." at the top')
    return name


def read_goals(top: Table) -> tuple[str, ...]:
    """Return what shall be small."""
    found = []
    for text in top.texts("goals") or GOALS:
        try:
            found.append(Goal.parse(text).text)
        except ConfigError as error:
            top.problems.add_error((*top.at, "goals"), error)
    return tuple(dict.fromkeys(found))
