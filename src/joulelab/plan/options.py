"""Define the options that the commands of `joulelab plan` share: powers, shares, times, runs and pictures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from joulelab.cli.output import check_overwrite, write_file
from joulelab.cli.parameters import Duration, KeyValue, runs_option, studies_option
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.store.run_reader import Run


F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")
FORMATS = ("pdf", "svg", "png")
MAKER = b"joulelab"  # the mark inside our pictures
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6}
PICTURE = "--picture"


class Watts(click.ParamType[float]):
    """Take a power with its unit: `8480W`, `8.48kW`; the value is in W.

    A number alone is refused: 70 may be 70 W or 70 kW. With `zero` it may be 0, for a node that is off.
    """

    name = "power"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return W."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\d+)?)\s*([kM]?)(W?)", str(value).strip())
        if not found or (float(found[1]) == 0 and not self._zero):
            self.fail(f"{value!r} is not a power; write it as 70kW or 8480W", param, ctx)
        if not found[2] and not found[3] and float(found[1]) != 0:
            self.fail(f"{value!r} has no unit; write {found[1]}W or {found[1]}kW", param, ctx)
        if not math.isfinite(float(found[1])):
            self.fail(f"{value!r} is not a finite power", param, ctx)
        return float(found[1]) * PREFIXES[found[2]]


class Percent(click.ParamType[float]):
    """Take a share of 0 to 100 %: `27%`, `27`, or as a share of one: `0.27`; a 1 alone is refused."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a share of 1."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"p?(\d+(?:\.\d*)?)\s*(%?)", str(value).strip())
        if not found:
            self.fail(f"{value!r} is not a share; write it as 27%", param, ctx)
        number = float(found[1])
        if number == 1 and not found[2]:
            self.fail(f"{value!r} may mean 1 % or 100 %; write 1% or 100%", param, ctx)
        if number > 100:
            self.fail(f"{value!r} is more than 100 %; write it as 27%", param, ctx)
        # In decimal: 99.9 % is 0.999, not 0.9990000000000001.
        return number if number < 1 and not found[2] else round(number / 100, 12)


class Number(click.FloatRange):
    """Take a finite number within bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Hours(Duration):
    """Take a time, also in days: `40h`, `3d`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        text = str(value).strip()
        number = text.removesuffix("d")
        if number != text and number.replace(".", "", 1).isdigit():
            return super().convert(f"{24 * float(number)}h", param, ctx)
        return super().convert(value, param, ctx)


def add_plan_option(holds: str) -> Callable[[F], F]:
    """Add `--plan FILE`; `holds` names the parts of it that the command uses."""
    path = click.Path(path_type=Path)
    return click.option("--plan", type=path, metavar="FILE", help=f"Plan file: {holds}.")


def add_why_option(function: F) -> F:
    """Add `--why`, as `is_explained`."""
    return click.option("--why", "is_explained", is_flag=True, help="Print all notes, and how it was computed.")(
        function
    )


def add_run_options(function: F) -> F:
    """Add `--only KEY=VALUE`, `--runs DIR` and `--studies DIR`."""
    only = click.option(
        "--only",
        type=KeyValue(),
        multiple=True,
        metavar="KEY=VALUE",
        help="Use only runs with this label: gpus=2; repeatable.",
    )
    return only(runs_option(studies_option(function)))


def add_picture_option(function: F) -> F:
    """Add `--picture FILE` and `--force`."""
    path = click.Path(path_type=Path)
    force = click.option("--force", is_flag=True, help="Overwrite a file that is not by joulelab.")
    return click.option(PICTURE, type=path, metavar="FILE", help="Draw a figure: .pdf, .svg or .png.")(force(function))


def check_picture(file: Path | None, *, force: bool) -> str:
    """Return the format of a picture by its name, empty without a picture.

    Raises UsageError for another format, ConfigError if it would overwrite a file that is not ours.
    """
    if file is None:
        return ""
    kind = file.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise click.UsageError(f"{file} is not a picture; name it .pdf, .svg or .png")
    check_overwrite(file, MAKER, what="picture", force=force, option=PICTURE)
    return kind


def write_picture(file: Path, data: bytes) -> None:
    """Write a picture whole or not at all. Raises ConfigError."""
    write_file(file, data, what="picture", option=PICTURE)


@dataclass(frozen=True, slots=True)
class RunFolders:
    """Hold the folders of runs and studies, and the labels that runs must have."""

    runs: Path
    studies: Path
    only: tuple[tuple[str, str], ...] = ()


def read_named_runs(words: Sequence[str], stores: RunFolders) -> list[MeasuredRun]:
    """Read the runs that words name, each once. Raises ConfigError, NotARun."""
    from joulelab.plan.measured_runs import read_measured_run, require_one_origin

    found = read_each_named(words, stores, read_measured_run)
    require_one_origin(found)
    return found


def read_each_named(words: Sequence[str], stores: RunFolders, read: Callable[[Run], T]) -> list[T]:
    """Call `read` on each run that words name, once. Raises ConfigError, NotARun, and the errors of `read`."""
    from joulelab.cli.output import show_progress
    from joulelab.store.run_reader import open_run

    folders = list(dict.fromkeys(path.resolve() for word in words for path in _list_folders(word, stores)))
    found: list[T] = []
    labels: list[Mapping[str, str]] = []
    with show_progress(f"reading {len(folders)} runs" if len(folders) > 1 else "reading the run"):
        for folder in folders:
            with open_run(folder) as run:
                labels.append(run.meta.get("labels") or {})
                if all(labels[-1].get(key) == value for key, value in stores.only):
                    found.append(read(run))
    if folders and not found:
        only = stores.only
        key, value = next((pair for pair in only if all(one.get(pair[0]) != pair[1] for one in labels)), only[0])
        have = ", ".join(sorted({one.get(key, "none") for one in labels}))
        raise ConfigError(
            f"no run has the label {key}={value}",
            why=f"{key} is {have}",
            next="name another with --only",
            code="config.no-such-label",
        )
    return found


def find_run_folders(words: Sequence[str], stores: RunFolders) -> list[Path]:
    """Return the folders of the runs that words name, each once. Raises ConfigError, NotARun."""
    return read_each_named(words, stores, lambda run: Path(run.path))


def _list_folders(word: str, stores: RunFolders) -> Iterator[Path]:
    """Yield the folders of the runs that a word names; a study's name comes before a run's."""
    from joulelab.cli.report import find_target
    from joulelab.study.slots import State, list_claimed_slots, read_slot

    target = find_target((word,), stores.runs, stores.studies)
    if target.study is None:
        yield from target.runs
        return
    slots = [
        read_slot(slot)
        for cell in sorted((target.study.folder / "cells").glob("*"))
        for slot in list_claimed_slots(cell)
        if slot.name.startswith("r")  # no warm-ups
    ]
    done = [slot.run for slot in slots if slot.state is State.DONE and slot.run]
    if not done:
        raise ConfigError(
            "the study has no run that is done",
            where=word,
            next=f"joulelab study run {word}",
            code="config.study-without-runs",
        )
    yield from done
