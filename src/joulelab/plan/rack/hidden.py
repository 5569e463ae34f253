"""Say what averages and slow readings hide: how much higher power may have been than the highest that was read.

The ratio is taken from the user's own finer runs where there are any, else from what others found and published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.plan.rack.blocks import side_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.measured_runs import HostTrace

FINER = 5.0  # a run is finer where it was read so many times as often
PUBLISHED_S = (2.0, 60.0)
PUBLISHED = (1.01, 1.03)  # highest 1-minute means were 97 to 99 % of the highest 2 s values
SOURCE = (
    "power logs of H100 nodes that Sustainable Metal Cloud published with MLPerf Training v4.0: "
    "2 s values against 1 min means"
)
SLACK = 1.1  # meters are a little slower than they say
MISSED = "moments {:.3g} s apart can miss any peak in between: the factor for them is no bound"
UNSEEN = (
    "peaks shorter than {:.3g} s are not seen by any of these readings "
    "(NVIDIA's guide of the DGX B300 plans for peaks of 1.3 times the average; not applied here)"
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hold the factor (lowest, highest) by which readings of `from_s` fall short of those of `to_s`.

    `high` is None where nobody knows. `source` says where it is from: the runs' own finer ones, what was published, or
    none where readings are as fine as any that it could be known from. Where it is no `bound`, peaks may be higher.
    """

    from_s: float
    to_s: float
    averaged: bool
    low: float
    high: float | None
    source: Literal["measured", "published", "none"]
    said: str
    bound: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Widened:
    """Hold the highest reading (W), and between what the highest power was once hidden peaks are counted.

    `high_w` is None where nobody knows. `hidden` has one entry for each way of reading, `notes` what stays unseen.
    """

    value_w: float
    low_w: float
    high_w: float | None
    hidden: tuple[Hidden, ...]
    notes: tuple[str, ...] = ()

    @property
    def factor(self) -> float | None:
        """Return by how much the highest reading is to be raised, None where nobody knows."""
        return None if self.high_w is None else self.high_w / self.value_w

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "value_w": self.value_w,
            "low_w": self.low_w,
            "high_w": self.high_w,
            "factor": self.factor,
            "hidden": [h.to_json() for h in self.hidden],
            "notes": list(self.notes),
        }


def resolution_s(draw: HostTrace) -> float:
    """Return the shortest peak (s) that readings of a host show whole: their distance, or what they are means over."""
    return max(draw.raw_s, draw.window_s)


def averaged_in(draw: HostTrace) -> bool:
    """Return whether the readings of a host are means that leave nothing out: over as long as they are apart."""
    return bool(draw.window_s) and draw.window_s * SLACK >= draw.raw_s


def widened(draws: Sequence[HostTrace], finer: Sequence[HostTrace] = ()) -> Widened:
    """Return the highest power with hidden peaks counted; finer runs, also among the draws themselves, tell the factor.

    Raises ConfigError where there is no draw, or sides differ.
    """
    side_of([*draws, *finer])
    read = [d for d in draws if np.isfinite(d.high_w).any()]
    every = [*read, *finer]
    kinds = {(round(resolution_s(d), 1), averaged_in(d)): d for d in read}
    hidden = {kind: hidden_in(resolution_s(d), averaged=kind[1], others=every) for kind, d in kinds.items()}
    lows, highs = [], []
    for d in read:
        one = hidden[round(resolution_s(d), 1), averaged_in(d)]
        lows.append(d.highest_w * one.low)
        highs.append(None if one.high is None else d.highest_w * one.high)
    known = [h for h in highs if h is not None]
    finest = min(h.to_s for h in hidden.values())
    return Widened(
        value_w=max(d.highest_w for d in read),
        low_w=max(lows),
        high_w=max(known) if len(known) == len(highs) else None,
        hidden=tuple(hidden.values()),
        notes=(UNSEEN.format(finest), *(MISSED.format(h.from_s) for h in hidden.values() if not h.bound)),
    )


def hidden_in(from_s: float, *, averaged: bool, others: Sequence[HostTrace]) -> Hidden:
    """Return the factor for readings of a resolution, means over it or moments, from finer runs or published."""
    ratios: list[Floats] = []
    used: dict[str, None] = {}
    to_s = from_s
    for d in others:
        if resolution_s(d) * FINER <= from_s and (found := _ratios(d, from_s, averaged=averaged)).size:
            ratios.append(found)
            used[d.run] = None
            to_s = min(to_s, resolution_s(d))
    how = "means over" if averaged else "moments every"
    if ratios:
        every = np.concatenate(ratios)
        said = f"{how} {from_s:.3g} s against {to_s:.3g} s in {len(used)} of the runs given"
        # The finer runs have shown what moments miss in each way that they could fall, so it bounds the same work.
        return Hidden(from_s, to_s, averaged, float(every.min()), float(every.max()), "measured", said)
    fine_s, coarse_s = PUBLISHED_S
    if from_s <= fine_s * SLACK:
        said = f"{how} {from_s:.3g} s are as fine as any there is a figure for"
        return Hidden(from_s, from_s, averaged, 1.0, 1.0, "none", said)
    if from_s <= coarse_s * SLACK:
        # A moment may be the peak itself; a mean over a minute never is.
        low = PUBLISHED[0] if averaged and from_s >= coarse_s / SLACK else 1.0
        said = SOURCE if averaged else f"{SOURCE}; taken for moments too, for which it is no bound"
        return Hidden(from_s, fine_s, averaged, low, PUBLISHED[1], "published", said, bound=averaged)
    said = f"nobody knows what {how} {from_s:.3g} s hide: measure once at {coarse_s / FINER:.0f} s or faster"
    return Hidden(from_s, from_s, averaged, 1.0, None, "none", said)


def _ratios(draw: HostTrace, coarse_s: float, *, averaged: bool) -> Floats:
    """Return the highest fine reading over the highest coarse one, for each way that the coarse ones could fall."""
    times = round(coarse_s / draw.step_s)
    if times < 2 or draw.high_w.size < 2 * times:
        return np.empty(0)
    coarse = _sliding(draw.mean_w, times) if averaged else draw.high_w
    size = coarse.size // times * times
    if not size:
        return np.empty(0)
    highest: Floats = np.fmax.reduce(coarse[:size].reshape(-1, times), axis=0)
    highest = highest[np.isfinite(highest) & (highest > 0)]
    ratios: Floats = np.maximum(draw.highest_w / highest, 1.0)
    return ratios


def _sliding(watts: Floats, times: int) -> Floats:
    """Return the mean of each so many readings in a row, NaN where one of them is missing."""
    summed = np.concatenate([[0.0], np.cumsum(np.nan_to_num(watts))])
    missing = np.concatenate([[0], np.cumsum(~np.isfinite(watts))])
    means = (summed[times:] - summed[:-times]) / times
    return np.where(missing[times:] > missing[:-times], np.nan, means)
