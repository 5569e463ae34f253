"""Measure what an AI workload costs in energy, from the GPU to the wall, and say how far to trust the figure."""

from __future__ import annotations

from joulelab.core.version import __version__

# Type checkers take this as true; `typing` itself would be most of the cost of the import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from joulelab.integrations.tracking import track
    from joulelab.run.energy_limit import remaining
    from joulelab.run.marking import fact, mark, phase, step, work, writer
    from joulelab.run.measure import Measurement, begin, end, measure, measured

__all__ = [
    "Measurement",
    "__version__",
    "begin",
    "end",
    "fact",
    "mark",
    "measure",
    "measured",
    "phase",
    "remaining",
    "step",
    "track",
    "work",
    "writer",
]

# Found when first used, so that `import joulelab` costs next to nothing.
_PLACES = {
    "Measurement": "joulelab.run.measure",
    "begin": "joulelab.run.measure",
    "end": "joulelab.run.measure",
    "measure": "joulelab.run.measure",
    "measured": "joulelab.run.measure",
    "fact": "joulelab.run.marking",
    "load_ipython_extension": "joulelab.integrations.jupyter",
    "mark": "joulelab.run.marking",
    "phase": "joulelab.run.marking",
    "remaining": "joulelab.run.energy_limit",
    "step": "joulelab.run.marking",
    "track": "joulelab.integrations.tracking",
    "unload_ipython_extension": "joulelab.integrations.jupyter",
    "work": "joulelab.run.marking",
    "writer": "joulelab.run.marking",  # for marks of times in the past
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'joulelab' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(place), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
