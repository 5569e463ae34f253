"""Measure a slot in virtual time: every meter of the twin that the study reads, each by its family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.virtual import cluster, families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.study.folder import Settings
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.virtual.bench import Bench, Measured

SLURM = cluster.FAMILY  # it is asked when the job is over


def chosen(meters: Mapping[str, MountedMeter], settings: Settings) -> dict[str, MountedMeter]:
    """Return the meters of a twin that a study reads: those it names, by name or family; all where it names none."""

    def meant(name: str, words: Iterable[str]) -> bool:
        return name in words or meters[name].family in words

    wanted = [name for name in meters if not settings.meters or meant(name, settings.meters)]
    return {name: meters[name] for name in wanted if not meant(name, settings.without)}


def check_meters(meters: Mapping[str, MountedMeter]) -> None:
    """Refuse meters of a family that virtual time does not know. Raises ConfigError."""
    for name, mounted in meters.items():
        if mounted.family == SLURM:
            cluster.check(name, mounted)
        elif mounted.family not in families.READERS:
            known = [*families.READERS, SLURM]
            what = f"virtual time has no meter {mounted.family!r}"
            raise ConfigError(what, where=f"[meters.{name}]", next=suggest_name(mounted.family, known))


def slowest_s(meters: Mapping[str, MountedMeter]) -> float:
    """Return how often the slowest of these meters is asked, in s."""
    asked = [float(m.options.get("period_s", m.ask_s)) for m in meters.values() if m.family != SLURM]
    return max(asked, default=0.0)


def measure(bench: Bench, meters: Mapping[str, MountedMeter]) -> list[Measured]:
    """Return what every meter shows. Raises ConfigError."""
    return [
        families.READERS[mounted.family](bench, name, mounted)
        for name, mounted in meters.items()
        if mounted.family != SLURM
    ]
