"""Describe load over time as linear pieces, without clock or file, and compile them to power segments of a node."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.twin.model import Node

Floats = npt.NDArray[np.float64]
Unit = Literal["load", "W"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Hold pieces from `at_s[i]` to `at_s[i+1]`, linear from `start[i]` to `end[i]`, of load (0 idle, 1 full) or watts.

    The last piece is constant and lasts for ever, unless `period_s` repeats the whole.
    """

    at_s: tuple[float, ...]
    start: tuple[float, ...]
    end: tuple[float, ...]
    unit: Unit = "load"
    period_s: float | None = None
    shift_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.at_s or self.at_s[0] != 0 or list(self.at_s) != sorted(self.at_s):
            raise ConfigError("a profile's times start at 0 and never fall", where="profile")
        if not len(self.at_s) == len(self.start) == len(self.end):
            raise ConfigError("a profile needs as many starts and ends as times", where="profile")
        if not all(math.isfinite(v) for v in (*self.at_s, *self.start, *self.end)):
            raise ConfigError("a profile has only finite numbers", where="profile")
        if min(*self.start, *self.end) < 0:
            raise ConfigError("a profile is never negative", where="profile")
        if self.period_s is None and self.start[-1] != self.end[-1]:
            raise ConfigError("the last piece of a profile is constant", where="profile")
        if self.period_s is not None and self.period_s <= self.at_s[-1]:
            raise ConfigError("a profile's period is longer than its pieces", where="profile")

    def shift_by(self, by_s: float) -> Profile:
        """Return the same profile, later by `by_s` (s)."""
        return replace(self, shift_s=self.shift_s + by_s)

    def list_pieces(self, from_s: float, to_s: float) -> tuple[Floats, Floats, Floats]:
        """Return times (s), starts and ends of the pieces within [from_s, to_s), cut at both ends."""
        at, start, end = self._unroll_cycles(from_s, to_s)
        after = np.append(at[1:], np.inf)
        keep = (after > from_s) & (at < to_s)
        at, start, end, after = at[keep], start[keep], end[keep], after[keep]
        width = after - at
        slope = np.divide(end - start, width, out=np.zeros_like(start), where=np.isfinite(width) & (width > 0))
        begin, stop = np.maximum(at, from_s), np.minimum(after, to_s)
        return begin, start + slope * (begin - at), start + slope * (stop - at)

    def _unroll_cycles(self, from_s: float, to_s: float) -> tuple[Floats, Floats, Floats]:
        at, start, end = (np.array(values, dtype=np.float64) for values in (self.at_s, self.start, self.end))
        if self.period_s is None:
            at = at + self.shift_s
            if at[0] > from_s:
                at, start, end = np.append(from_s, at), np.append(start[0], start), np.append(start[0], end)
            return at, start, end
        first = math.floor((from_s - self.shift_s) / self.period_s)
        turns = max(1, math.ceil((to_s - self.shift_s) / self.period_s) - first)
        base = self.shift_s + self.period_s * np.arange(first, first + turns)
        at = (base[:, None] + at[None, :]).ravel()
        # A closing edge, so that the last turn ends where the next would begin.
        at = np.append(at, self.shift_s + self.period_s * (first + turns))
        return at, np.append(np.tile(start, turns), start[0]), np.append(np.tile(end, turns), start[0])


def constant(level: float, *, unit: Unit = "load") -> Profile:
    """Return a level held for ever."""
    return Profile((0.0,), (level,), (level,), unit)


def square(period_s: float, duty: float = 0.5, low: float = 0.0, high: float = 1.0, *, unit: Unit = "load") -> Profile:
    """Return `high` for `duty` of each period (s), then `low`."""
    if not 0 < duty < 1:
        raise ConfigError(f"duty is {duty}, not between 0 and 1", where="profile square")
    return Profile((0.0, duty * period_s), (high, low), (high, low), unit, period_s)


def ramp(over_s: float, low: float = 0.0, high: float = 1.0, *, unit: Unit = "load") -> Profile:
    """Return a line from `low` to `high` over `over_s` (s), then `high`."""
    return Profile((0.0, over_s), (low, high), (high, high), unit)


def burst(at_s: float, for_s: float, low: float = 0.0, high: float = 1.0, *, unit: Unit = "load") -> Profile:
    """Return `low`, but `high` for `for_s` (s) from `at_s` (s) on."""
    return Profile((0.0, at_s, at_s + for_s), (low, high, low), (low, high, low), unit)


def steps(each_s: float, levels: Sequence[float], *, unit: Unit = "load") -> Profile:
    """Return each level for `each_s` (s); the last stays."""
    at = tuple(each_s * i for i in range(len(levels)))
    return Profile(at, tuple(levels), tuple(levels), unit)


def from_arrays(at_s: Sequence[float], level: Sequence[float], *, unit: Unit = "W") -> Profile:
    """Return lines through the points (s, level); the last level stays."""
    level = [float(v) for v in level]
    return Profile(tuple(float(v) - float(at_s[0]) for v in at_s), tuple(level), (*level[1:], level[-1]), unit)


KINDS: Mapping[str, Callable[..., Profile]] = {
    "constant": constant,
    "square": square,
    "ramp": ramp,
    "burst": burst,
    "steps": steps,
}
_KEYS = {
    "constant": ("level",),
    "square": ("period_s", "duty", "low", "high"),
    "ramp": ("over_s", "low", "high"),
    "burst": ("at_s", "for_s", "low", "high"),
    "steps": ("each_s", "levels"),
}


def parse_profile(text: str) -> Profile:
    """Read `kind:key=value,key=value`, such as `square:period_s=0.35,duty=0.5,low=100,high=600,unit=W`.

    Levels of `steps` are joined by `/`; `shift_s` and `unit` go with every kind. Raises ConfigError.
    """
    kind, _, rest = text.partition(":")
    where = f"profile {text!r}"
    if kind not in KINDS:
        raise ConfigError(f"there is no profile {kind!r}", where=where, next=suggest_name(kind, KINDS))
    options: dict[str, object] = {}
    shift_s = 0.0
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key == "shift_s":
            shift_s = _read_number(value, key, where)
        elif key == "unit":
            options["unit"] = _read_unit(value, where)
        elif key in _KEYS[kind]:
            many = [_read_number(part, key, where) for part in value.split("/")]
            options[key] = many if key == "levels" else many[0]
        else:
            raise ConfigError(
                f"{kind} has no {key!r}", where=where, next=suggest_name(key, (*_KEYS[kind], "shift_s", "unit"))
            )
    try:
        return KINDS[kind](**options).shift_by(shift_s)
    except TypeError as error:
        raise ConfigError(
            f"{kind} needs more", where=where, why=str(error), next=f"give {', '.join(_KEYS[kind])}"
        ) from None


def _read_number(text: str, key: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key} is {text!r}, not a number", where=where) from None


def _read_unit(text: str, where: str) -> Unit:
    if text == "load":
        return "load"
    if text == "W":
        return "W"
    raise ConfigError(f"unit is {text!r}", where=where, next="use load or W")


Pieces = tuple[Floats, Floats, Floats]  # times in s, level at start, level at end
Segments = tuple[npt.NDArray[np.int64], Floats, Floats]  # times in ns, W at start, W at end


def check_profiles(node: Node, profiles: Mapping[str, Profile]) -> None:
    """Raise ConfigError if a profile is for something the node does not have; `core` follows `cpu` and takes none."""
    valid = {leaf for leaf in node.list_leaves() if not leaf.startswith("core")}
    valid |= {leaf.partition(":")[0] for leaf in valid}
    for name in profiles:
        if name not in valid:
            raise ConfigError(
                f"no load can be given for {name!r}", where=f"node {node.name}", next=suggest_name(name, valid)
            )


def compile_segments(
    node: Node, profiles: Mapping[str, Profile], start_ns: int, from_s: float, to_s: float
) -> dict[str, Segments]:
    """Return for each leaf the segments of [from_s, to_s) after `start_ns`; the last is constant."""
    check_profiles(node, profiles)
    loads = {leaf: _read_load(node, profiles, leaf, from_s, to_s) for leaf in node.list_leaves() if leaf != "host"}
    if "host" in profiles:
        loads["host"] = _read_load(node, profiles, "host", from_s, to_s)
    else:
        loads["host"] = _average_load([loads[leaf] for leaf in loads if leaf.startswith("gpu")], from_s, to_s)
    return {leaf: _list_powers(node, leaf, load, start_ns, to_s) for leaf, load in loads.items()}


def _read_load(node: Node, profiles: Mapping[str, Profile], leaf: str, from_s: float, to_s: float) -> Pieces:
    """Return the load (0 idle, 1 full) of a leaf: its own profile, its family's, that of its package, or idle."""
    kind, _, number = leaf.partition(":")
    package = (f"cpu:{number}", "cpu") if kind in {"core", "dram"} else ()
    for name in (leaf, kind, *package):
        if name in profiles:
            profile, of = profiles[name], f"{name.partition(':')[0]}:{number}" if number else name
            break
    else:
        profile, of = constant(0.0), leaf
    at, start, end = profile.list_pieces(from_s, to_s)
    if profile.unit == "W":
        least_w, most_w = (float(node.draws_w(of, load)) for load in (0.0, 1.0))
        start, end = ((watts - least_w) / (most_w - least_w) for watts in (start, end))
        if kind == "dram" and of != leaf:  # a package that sleeps draws less than one without a load
            start, end = np.maximum(start, 0.0), np.maximum(end, 0.0)
    return at, start, end


def _average_load(loads: Sequence[Pieces], from_s: float, to_s: float) -> Pieces:
    """Return the mean of several loads, on the union of their edges."""
    if not loads:
        return np.array([from_s]), np.zeros(1), np.zeros(1)
    at = np.unique(np.concatenate([load[0] for load in loads]))
    after = np.append(at[1:], to_s)
    start, end = np.zeros_like(at), np.zeros_like(at)
    for times, first, last in loads:
        width = np.append(times[1:], to_s) - times
        slope = np.divide(last - first, width, out=np.zeros_like(width), where=width > 0)
        index = np.searchsorted(times, at, side="right") - 1
        start += first[index] + slope[index] * (at - times[index])
        end += first[index] + slope[index] * (after - times[index])
    return at, start / len(loads), end / len(loads)


def _list_powers(node: Node, leaf: str, load: Pieces, start_ns: int, to_s: float) -> Segments:
    at, start, end = load
    if start[-1] != end[-1]:
        at, start, end = np.append(at, to_s), np.append(start, end[-1]), np.append(end, end[-1])
    awake = np.where((start != 0) | (end != 0), 1.0, 0.0)
    start_w, end_w = (np.maximum(node.draws_w(leaf, level, awake), 0.0) for level in (start, end))
    return start_ns + np.rint(at * NS).astype(np.int64), start_w, end_w
