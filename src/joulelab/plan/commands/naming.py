"""Find the runs that a plan is made from: by id, name, path or `last`, or all runs of a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.plan.draws import Measured
    from joulelab.store.run_reader import Run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stores:
    """Hold where runs and studies are looked for, and the labels that runs must have to count."""

    runs: Path
    studies: Path
    only: tuple[tuple[str, str], ...] = ()


def measured_named(words: Sequence[str], stores: Stores) -> list[Measured]:
    """Return what runs measured, each named once. Raises ConfigError, NotARun."""
    from joulelab.plan.draws import measured_of

    return read_named(words, stores, measured_of)


def read_named(words: Sequence[str], stores: Stores, read: Callable[[Run], T]) -> list[T]:
    """Return what is read of runs, each named once. Raises ConfigError, NotARun, and what reading raises."""
    from joulelab.cli.output import show_progress
    from joulelab.store.run_reader import open_run

    folders = _every(words, stores)
    found: list[T] = []
    labels: list[Mapping[str, str]] = []
    with show_progress(f"reading {len(folders)} runs" if len(folders) > 1 else "reading the run"):
        for folder in folders:
            with open_run(folder) as run:
                labels.append(run.meta.get("labels") or {})
                if all(labels[-1].get(key) == value for key, value in stores.only):
                    found.append(read(run))
    if folders and not found:
        raise _unlabelled(labels, stores.only)
    return found


def folders_named(words: Sequence[str], stores: Stores) -> list[Path]:
    """Return the folders of runs, each named once. Raises ConfigError, NotARun."""
    from pathlib import Path

    return read_named(words, stores, lambda run: Path(run.path))


def _every(words: Sequence[str], stores: Stores) -> list[Path]:
    return list(dict.fromkeys(path.resolve() for word in words for path in _folders(word, stores)))


def _unlabelled(labels: Sequence[Mapping[str, str]], only: Sequence[tuple[str, str]]) -> ConfigError:
    """Return why no run has all labels that were asked for: the first that none has, and what they have instead."""
    key, value = next((pair for pair in only if all(one.get(pair[0]) != pair[1] for one in labels)), only[0])
    have = ", ".join(sorted({one.get(key, "none") for one in labels}))
    return ConfigError(f"no run has the label {key}={value}", why=f"{key} is {have}", next="name another with --only")


def _folders(word: str, stores: Stores) -> Iterator[Path]:
    """Give the folders of the runs that a word names; a study's name comes before a run's."""
    from joulelab.cli.report import find_target
    from joulelab.study.slots import State, list_claimed_slots, read_slot

    target = find_target((word,), stores.runs, stores.studies)
    if target.study is None:
        yield from target.runs
        return
    cells = sorted((target.study.folder / "cells").glob("*"))
    repeats = [
        read_slot(slot) for cell in cells for slot in list_claimed_slots(cell) if slot.name.startswith("r")
    ]  # no warm-ups
    done = [slot.run for slot in repeats if slot.state is State.DONE and slot.run]
    if not done:
        raise ConfigError("the study has no run that is done", where=word, next=f"joulelab study run {word}")
    yield from done
