"""Say which work has a figure for each unit of it, and in which phases it was done. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.result import PhaseResult

# Work of some phases only: what a whole run that did something else took for each of it is no figure of anything.
JUDGED_WORK = ("validated", "predicted")
COST_WORK = ("FLOP", "steps")  # not what was worked on but what that took
NEARLY_ALL = 0.9  # phases that have so much of the most that phases of one name have were it all the same


def list_figure_kinds(kinds: Iterable[str]) -> list[str]:
    """Return the kinds of work that energy and time of the whole may be divided by.

    What was only judged has such a figure where nothing else was worked on, as in a phase of its own.
    """
    there = list(dict.fromkeys(kinds))
    others = [kind for kind in there if kind not in (*JUDGED_WORK, *COST_WORK)]
    return [kind for kind in there if kind not in JUDGED_WORK or not others]


def find_work_phase(phases: Sequence[PhaseResult], kind: str) -> tuple[str, float] | None:
    """Return the name of the phases that a kind of work was done in, and its amount per second in them.

    Those that took least time of those that hold nearly all of it; None where it was done in no phase. Phases of
    several nodes or threads go on at the same time, which counts once.
    """
    by_name: dict[str, list[PhaseResult]] = {}
    for phase in phases:
        if phase.last is None and phase.work.get(kind):
            by_name.setdefault(phase.name, []).append(phase)
    done = {name: sum(p.work[kind] for p in some) for name, some in by_name.items()}
    took = {name: _sum_union(some) for name, some in by_name.items()}
    most = max(done.values(), default=0.0)
    held = [name for name in done if done[name] >= NEARLY_ALL * most and took[name] > 0]
    name = min(held, key=lambda each: took[each], default=None)
    return None if name is None else (name, done[name] / took[name])


def _sum_union(phases: Iterable[PhaseResult]) -> float:
    """Return how long at least one of some phases went on, in s."""
    whole = reached = 0.0
    for start, end in sorted((p.start_s, p.start_s + p.duration_s) for p in phases):
        whole += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return whole
