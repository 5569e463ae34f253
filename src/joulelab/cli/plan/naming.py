"""Find the runs that a plan is made from: by id, name, path or `last`, or all runs of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from joulelab.planner.draws import Measured
    from joulelab.store.run import Run

T = TypeVar("T")


def measured_named(words: Sequence[str], runs: Path, studies: Path) -> list[Measured]:
    """Return what runs measured, each named once. Raises ConfigError, NotARun."""
    from joulelab.planner.draws import measured_of

    return read_named(words, runs, studies, measured_of)


def read_named(words: Sequence[str], runs: Path, studies: Path, read: Callable[[Run], T]) -> list[T]:
    """Return what is read of runs, each named once. Raises ConfigError, NotARun, and what reading raises."""
    from joulelab.cli.busy import busy
    from joulelab.store.run import open_run

    folders = list(dict.fromkeys(path.resolve() for word in words for path in _folders(word, runs, studies)))
    found: list[T] = []
    with busy(f"reading {len(folders)} runs" if len(folders) > 1 else "reading the run"):
        for folder in folders:
            with open_run(folder) as run:
                found.append(read(run))
    return found


def _folders(word: str, runs: Path, studies: Path) -> Iterator[Path]:
    """Give the folders of the runs that a word names; a study's name comes before a run's."""
    from joulelab.cli.report import find_target
    from joulelab.study.slots import State, look, slots_of

    target = find_target((word,), runs, studies)
    if target.study is None:
        yield from target.runs
        return
    cells = sorted((target.study.folder / "cells").glob("*"))
    repeats = [look(slot) for cell in cells for slot in slots_of(cell) if slot.name.startswith("r")]  # no warm-ups
    done = [slot.run for slot in repeats if slot.state is State.DONE and slot.run]
    if not done:
        raise ConfigError("the study has no run that is done", where=word, next=f"joulelab study run {word}")
    yield from done
