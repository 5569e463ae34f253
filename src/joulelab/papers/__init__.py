"""Hold the papers whose studies joulelab reproduces on twins: each is a module of this folder, found by its name.

A module has `PAPER`, a `Paper`. It works out its figures from a study's folder as from any study's; what was published
is only set beside them.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.papers.figure_judgement import Figure
    from joulelab.study.folder import Study

FRAME = (
    "changes",
    "commands",
    "reproducing",
    "covered",
    "files",
    "judged",
    "published",
    "tables",
    "text",
    "told",
)  # modules of this folder that are no papers


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """Hold a table of the paper as it is printed: heads, rows of texts, a note; CSV has `records` in full, SI."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    records: tuple[Mapping[str, Any], ...] = ()


def _nothing(*_: Any) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class Paper:
    """Describe a paper's study: its file of `studies/`, the twin of each node type, and what is made of the results.

    `figures(study, published)` returns every published figure, also of cells that have not run (`reproduced` None): so
    an empty study gives the whole list. `published` is the paper's table of published.toml; nothing of it may get into
    what is reproduced. Kinds: "identity", "finding", "outside" as they are; all else "predicted", the frame marks what
    the twin was calibrated on. `pictures(study, folder)` writes files and returns them, and raises MissingDependency
    without matplotlib; `tables(study)` returns the paper's own tables; `meters(study)` says in sentences what the
    meters cost. `not_figures` names keys of published.toml that are no figures (`rows.0.2`), with the reason.
    `hardware` says what will differ from the paper on hardware. `example` is a change of the twin that moves figures,
    to be tried with --set.
    """

    name: str
    title: str
    file: str
    twins: Mapping[str, str]
    figures: Callable[[Study, Mapping[str, Any]], list[Figure]]
    pictures: Callable[[Study, Path], list[Path]] = _nothing
    tables: Callable[[Study], Sequence[PublishedTable]] = _nothing
    meters: Callable[[Study], Sequence[str]] = _nothing
    not_figures: Mapping[str, str] = field(default_factory=dict)
    hardware: str = ""
    example: str = "cooling.inlet_c=35"


def names() -> list[str]:
    """Return the papers that there are."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if _is_paper(m.name))


def _is_paper(name: str) -> bool:
    """Return whether a module is a paper: not of the frame, and not a part of a paper (`bnl_pictures`)."""
    return name not in FRAME and "_" not in name


def find(name: str) -> Paper:
    """Return a paper by its name. Raises ConfigError that lists the valid ones."""
    if name not in names():
        from joulelab.core.text import suggest_name

        raise ConfigError(f"there is no paper {name!r}", where="reproduce", next=suggest_name(name, names()))
    paper: Paper = importlib.import_module(f"{__name__}.{name}").PAPER
    return paper
