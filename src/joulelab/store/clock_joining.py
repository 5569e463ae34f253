"""Join the clocks of hosts: convert the monotonic time of one to that of another, with a bound of the error.

There are two ways: by UTC, with the clock pairs of both hosts, or by questions that one host asked the other while
both recorded, where the round trip bounds the error. The way with the smaller bound is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.core.clock import ClockPair

Integers = npt.NDArray[np.int64]

STEP_NS = 50_000_000  # a change between two pairs that no drift explains: UTC was stepped
DRIFT = 1e-4  # clocks run apart by no more than this
# The kernel's error bound of an unsynchronised clock; also used if the kernel reports none.
UNSYNCHRONISED_NS = 16 * NS
UTC_BOOT_ID = "imported"  # the boot id of stamps that are UTC themselves
TIME_KEYS = ("t", "from", "to", "start_ns", "end_ns")
WINDOW_NS = 30 * NS  # of the answers within, the quickest is used
BEYOND_NS = 10 * NS  # of the record before the first answer and after the last


@dataclass(frozen=True, slots=True, eq=False)
class ClockJoint:
    """Convert the time (ns) of one host to that of another, by offsets that are interpolated between known times.

    Before the first and after the last, the nearest offset holds. `error_ns` is the largest error of a time.
    """

    at_ns: Integers
    offset_ns: Integers
    error_ns: int

    def moved(self, t_ns: Integers) -> Integers:
        """Convert times to the time of the other host."""
        moved: Integers = t_ns + _interpolate_offset(t_ns, self.at_ns, self.offset_ns)
        return moved

    def lines(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return events or marks with converted times; clock pairs in them stay unchanged."""
        keys = [[k for k in TIME_KEYS if type(line.get(k)) is int] for line in lines]
        lists = [_list_integers(line.get("at")) for line in lines]
        parts = [[*(line[k] for k in own), *many] for line, own, many in zip(lines, keys, lists, strict=True)]
        moved = iter(self.moved(np.array([t for part in parts for t in part], np.int64)).tolist())
        found = []
        for line, own, many in zip(lines, keys, lists, strict=True):
            times: dict[str, Any] = {k: next(moved) for k in own}
            found.append({**line, **times, **({"at": [next(moved) for _ in many]} if many else {})})
        return found


def _list_integers(stamps: Any) -> list[int]:
    return [t for t in stamps if type(t) is int] if isinstance(stamps, list) else []


def choose_joint(
    first: Sequence[ClockPair], other: Sequence[ClockPair], answers: Iterable[Mapping[str, Any]]
) -> ClockJoint | None:
    """Return the conversion of a host's time to that of the first host, None if nothing joins them.

    `answers` are events with the first host's times `from` and `to` around the other's `node_ns`.
    """
    found = [joint for joint in (join_by_utc(first, other), join_by_answers(answers)) if joint is not None]
    return min(found, key=lambda joint: joint.error_ns, default=None)


def join_by_utc(first: Sequence[ClockPair], other: Sequence[ClockPair]) -> ClockJoint | None:
    """Join two hosts by UTC: by their clock pairs, which are in order of monotonic time."""
    if not first or not other:
        return None
    at, to_utc, loose = _find_offsets(other)
    at_first, first_to_utc, first_loose = _find_offsets(first)
    utc_first = at_first + first_to_utc
    # The offset changes its slope where either host has a pair.
    turns = np.unique(np.concatenate((at, utc_first - _interpolate_offset(utc_first, at + to_utc, to_utc))))
    utc = turns + _interpolate_offset(turns, at, to_utc)
    there = utc - _interpolate_offset(utc, utc_first, first_to_utc)
    return ClockJoint(turns, there - turns, loose + first_loose)


def join_by_answers(answers: Iterable[Mapping[str, Any]]) -> ClockJoint | None:
    """Join two hosts by questions and answers: the other host read its clock between the question and the answer."""
    found: dict[int, tuple[int, int, int]] = {}
    for answer in answers:
        times = [answer.get(key) for key in ("from", "to", "node_ns")]
        if not all(type(t) is int for t in times):
            continue
        since, until, there = (int(t) for t in times if t is not None)
        known = found.get(since // WINDOW_NS)
        if until >= since and (known is None or until - since < known[2]):
            found[since // WINDOW_NS] = (there, (since + until) // 2 - there, until - since)
    if not found:
        return None
    at, offset, width = (np.array(column, np.int64) for column in zip(*sorted(found.values()), strict=True))
    apart = max(int(np.diff(at).max(initial=0)), BEYOND_NS)
    return ClockJoint(at, offset, -(-int(width.max()) // 2) + _measure_scatter(at, offset) + round(DRIFT * apart))


def _find_offsets(pairs: Sequence[ClockPair]) -> tuple[Integers, Integers, int]:
    """Return times, their offsets to UTC, and the largest error (ns).

    If UTC was stepped, the offset of the pair with the smallest kernel error is used for all times: monotonic time
    does not step, and it is unknown which of the other offsets was right.
    """
    at = np.array([p.mono_ns for p in pairs], np.int64)
    offset = np.array([p.utc_ns - p.mono_ns for p in pairs], np.int64)
    errors = [_get_kernel_error(p) for p in pairs]
    loose = max(p.width_ns for p in pairs) // 2 + 1 + max(errors)
    if int(np.abs(np.diff(offset)).max(initial=0)) <= STEP_NS:
        return at, offset, loose + _measure_scatter(at, offset)
    best = min(range(len(pairs)), key=lambda k: (errors[k], -k))
    return at[best : best + 1], offset[best : best + 1], loose + int(np.abs(offset - offset[best]).max())


def _get_kernel_error(pair: ClockPair) -> int:
    if pair.boot_id == UTC_BOOT_ID:
        return 0
    return UNSYNCHRONISED_NS if pair.kernel_error_ns is None else pair.kernel_error_ns


def _measure_scatter(at: Integers, offset: Integers) -> int:
    """Return the spread (ns) of offsets around a line that drifts no faster than clocks do."""
    if at.size < 3:
        return 0
    t, y = (at - at[0]).astype(np.float64), (offset - offset[0]).astype(np.float64)
    t, y = t - t.mean(), y - y.mean()
    square = float(np.dot(t, t))
    slope = float(np.clip(np.dot(t, y) / square, -DRIFT, DRIFT)) if square > 0 else 0.0
    return int(np.ceil(np.ptp(y - slope * t)))


def _interpolate_offset(t_ns: Integers, at: Integers, offset: Integers) -> Integers:
    """Return the offset (ns) at each time; relative to the first one, so that floats hold it to the nanosecond."""
    if at.size == 1 or not np.ptp(offset):
        return offset[:1]
    change = np.interp((t_ns - at[0]).astype(np.float64), (at - at[0]).astype(np.float64), offset - offset[0])
    found: Integers = offset[0] + np.rint(change).astype(np.int64)
    return found
