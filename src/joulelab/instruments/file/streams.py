"""Sort the cells of a file into streams, with gaps where readings are missing, doubtful or no numbers."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Fetched, Stream
from joulelab.instruments.file.values import NotANumber, clean_name

if TYPE_CHECKING:
    from joulelab.instruments.file.layout import Column, Layout

HOLD = 3.0  # a reading stands for up to 3 usual steps, as in the analysis; more is a gap
MOST_GAPS = 1000  # gaps of a stream that are listed one by one
# Numbers with a decimal comma (99,5  1.234,5 W) or with separators of thousands (1,300  1'300.5  1 300).
_SEPARATED = re.compile(
    r"[-+]?(?:\d[\d. ']*,\d+|\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d{1,3}([.'’_ \u00a0\u202f])\d{3}(?:\1\d{3})*(?:[.,]\d*)?)"
    r"(?:[eE][-+]?\d+)?\s*[A-Za-z]*"
)
# A larger share of text than this, and more cells or rows, is no accident: a power too high, another layout.
MOST_TEXT, FEW = 0.05, 2
# Up to 3 rows of 0 W between powers above 20 W are no readings: nothing is switched off for so short a time.
MOST_ZEROS, LEAST_ON_W = 3, 20.0
# A stamp is the time at which a row was written; the age of the value is not in a file. It is the sensor's own update
# where rows repeat its values; else up to a second, as of PDUs, BMCs and GPUs, or a step that is less.
USUAL_UPDATE_S = 1.0
LEAST_RUNS, REGULAR, MOST_COMPARED = 20, 0.2, 100_000
BURST = 0.05  # of the time between bursts: rows that are closer were written at once


class Rows(Sequence[tuple[int, int, Sequence[float]]]):
    """Show columns of numbers as rows, which are made when they are read: a file may have millions."""

    def __init__(self, times: Sequence[int], columns: Sequence[Sequence[float]]) -> None:
        self.times, self.columns = times, columns

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: Any) -> Any:
        return self.times[index], self.times[index], tuple(c[index] for c in self.columns)

    def __iter__(self) -> Iterator[tuple[int, int, Sequence[float]]]:
        return zip(self.times, self.times, zip(*self.columns, strict=True), strict=True)


class BadCell(NamedTuple):
    """Hold a cell that is no reading; `reason` is empty for a text in place of a number."""

    t_ns: int
    column: int
    line: int
    text: str
    reason: str = ""


@dataclass(slots=True)
class Track:
    """Collect the rows of one device on one host; `values` has a list of numbers for each mapped column."""

    host: str
    device: str
    values: list[array[float]]
    times: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    bad: list[BadCell] = field(default_factory=list)
    backward: int = 0
    repeated: int = 0
    first_doubt: int = 0

    def add_row(self, t_ns: int, line: int, cells: Sequence[str], columns: Sequence[Column]) -> None:
        """Add one row."""
        if self.times and t_ns <= self.times[-1]:
            self.backward += t_ns < self.times[-1]
            self.repeated += t_ns == self.times[-1]
            self.first_doubt = self.first_doubt or line
        for k, column in enumerate(columns):
            try:
                value = column.reader.read_number(cells[column.index])
            except NotANumber as error:
                self.bad.append(BadCell(t_ns, k, line, str(error)[:40]))
                value = nan
            self.values[k].append(value)
        self.times.append(t_ns)
        self.lines.append(line)

    def sort_rows(self) -> None:
        """Put the rows into the order of time."""
        order = sorted(range(len(self.times)), key=self.times.__getitem__) if self.backward else ()
        if order:
            self.times, self.lines = (array("q", [some[k] for k in order]) for some in (self.times, self.lines))
            self.values = [array("d", [column[k] for k in order]) for column in self.values]

    def cut_rows(self, start_ns: int, end_ns: int) -> Track:
        """Return the rows in [start, end] of a sorted track, and the nearest on both sides."""
        first, last = bisect_left(self.times, start_ns), bisect_right(self.times, end_ns)
        first = bisect_left(self.times, self.times[first - 1]) if first else 0
        last = bisect_right(self.times, self.times[last]) if last < len(self.times) else last
        times, values = self.times[first:last], [column[first:last] for column in self.values]
        bad = [b for b in self.bad if times[0] <= b.t_ns <= times[-1]]
        return replace(self, times=times, lines=self.lines[first:last], values=values, bad=bad)


def is_much(left_out: int, taken: int) -> bool:
    """Return whether the rest does not represent the whole, since too many cells or rows are left out."""
    return left_out > max(FEW, MOST_TEXT * (left_out + taken))


def refuse_texts(tracks: Sequence[Track], layout: Layout, where: str) -> None:
    """Raise ReadFailed where powers or energies hold text, or energies of single rows.

    One number with a separator is enough: such numbers are the large ones. Other text is a gap, unless there is much.
    """
    for k, column in enumerate(layout.columns):
        if column.spec.kind == "state":
            continue
        bad = [b for t in tracks for b in t.bad if b.column == k]
        separated = [b for b in bad if _SEPARATED.fullmatch(b.text)]
        good = sum(not isnan(v) for t in tracks for v in t.values[k])
        if separated or (bad and (not good or is_much(len(bad), good))):
            wrong = (separated or bad)[0]
            advice = _advise_separators([b.text for b in separated])
            raise ReadFailed(
                f"{column.name!r} cannot be read",
                where=where,
                why=f"{len(separated or bad)} cells are not numbers; first: line {wrong.line}, {wrong.text!r}",
                next=advice or f"map another column, or type 'missing={wrong.text}'",
                code="read-failed.no-numbers",
            )
        if column.spec.kind == "power":
            continue
        falls = sum(b < a for t in tracks for a, b in pairwise(v for v in t.values[k] if not isnan(v)))
        if is_much(falls, good):
            what, why = f"{column.name!r} is not a counter", f"it falls {falls} times in {good} readings"
            advice = "map a power instead, or add the energies of single rows up before"
            raise ReadFailed(what, where=where, why=why, next=advice, code="read-failed.no-counter")


def _advise_separators(texts: Sequence[str]) -> str:
    """Return the settings to type for numbers with separators."""
    commas = [text for text in texts if "," in text]
    if not commas:
        return f'type thousands="{re.findall(r"[^-+0-9]", texts[0])[0]}"' if texts else ""
    points = ' thousands="."' if any("." in text.partition(",")[0] for text in commas) else ""
    decimal, thousands = f'type decimal=","{points}', 'type thousands=","'
    if any("." in text.rpartition(",")[2] or text.count(",") > 1 for text in commas):
        return thousands
    if points or not all(re.search(r",\d{3}(?!\d)", text) for text in commas):
        return decimal
    return f"if the comma of {commas[0]} is a decimal mark, {decimal}; if it separates thousands, {thousands}"


def drop_false_values(track: Track, layout: Layout) -> list[str]:
    """Drop counters that stand still, and short runs of 0 W between powers; return remarks."""
    remarks = []
    for k, column in enumerate(layout.columns):
        values = track.values[k]
        counts = {v for v in values if not isnan(v)} if column.spec.kind == "counter" else ()
        if len(counts) == 1 and len(values) >= LEAST_RUNS:
            track.values[k] = array("d", [nan]) * len(values)
            remarks.append(f"{column.name}: a counter that stands still is left out; its steps may be too large")
        if column.spec.kind != "power" or 0.0 not in values:
            continue
        kept, good = list[int](), [row for row, value in enumerate(values) if not isnan(value)]
        runs = [
            [row for row, _ in some]
            for _, some in groupby(((row, values[row]) for row in good), lambda one: not one[1])
        ]
        for before, zeros, after in zip([[], *runs], runs, [*runs[1:], []], strict=False):
            if values[zeros[0]] != 0.0:
                continue
            if before and after and len(zeros) <= MOST_ZEROS and min(values[before[-1]], values[after[0]]) > LEAST_ON_W:
                reason = f"0 W between {values[before[-1]]:g} and {values[after[0]]:g} W is no reading"
                track.bad += [BadCell(track.times[row], k, track.lines[row], "0", reason) for row in zeros]
                for row in zeros:
                    values[row] = nan
            else:
                kept += zeros
        if kept and max(values[row] for row in good if not isnan(values[row])) > LEAST_ON_W:
            lines = f"{len(kept)} readings of 0 W (first: line {track.lines[kept[0]]})"
            remarks.append(f"{column.name}: {lines} are taken as switched off; if they are no readings, type missing=0")
    return remarks


def find_mixed_rows(track: Track) -> str:
    """Return why rows seem to be of several devices: many have the same time, or come in bursts; else nothing."""
    if is_much(track.repeated, len(track.times)):
        return f"{track.repeated} of {len(track.times)} rows have the time of the row before"
    steps = _list_steps(track.times)
    if len(steps) < LEAST_RUNS:
        return ""
    short, long = (steps[int(len(steps) * part)] for part in (0.25, 0.97))
    return f"rows come in bursts, {short / NS:.3g} s and {long / NS:.3g} s apart" if short < BURST * long else ""


def find_update(track: Track, k: int) -> float:
    """Return how often a column shows a new value (s) where rows repeat it regularly, else 0.

    Values that stay because the load does change after times of any length, those of a sensor after whole updates.
    """
    changes, last = list[int](), nan
    for t_ns, value in zip(track.times[:MOST_COMPARED], track.values[k], strict=False):
        if not isnan(value) and value != last:
            changes.append(t_ns)
            last = value
    runs = _list_steps(changes[1:])
    if len(runs) < LEAST_RUNS:
        return 0.0
    shortest_s, middle_s = runs[len(runs) // 20] / NS, runs[len(runs) // 2] / NS
    is_regular = shortest_s > 1.5 * _find_step(track.times) and shortest_s > REGULAR * middle_s
    return shortest_s if is_regular else 0.0


def _list_steps(times: Sequence[int]) -> list[int]:
    return sorted(after - before for before, after in pairwise(times) if after > before)


def _find_step(times: Sequence[int]) -> float:
    """Return the usual time between rows (s)."""
    steps = _list_steps(times)
    return steps[len(steps) // 2] / NS if steps else 1.0


def make_streams(track: Track, layout: Layout, updates_s: Mapping[int, float]) -> list[Fetched]:
    """Return the streams of one device; `updates_s` are the updates (s) of columns whose values repeat.

    Columns of one scope are one stream, unless their channels have the same name: then they are other sensors.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, c in enumerate(layout.columns):
        same = sum((o.scope, o.spec.name) == (c.scope, c.spec.name) for o in layout.columns[:k])
        groups.setdefault((c.scope, c.parent, c.sums, c.parts, same), []).append(k)
    found, names = list[Fetched](), set[str]()
    for members in groups.values():
        first = layout.columns[members[0]]
        scope = first.scope.replace("{device}", track.device)
        name = f"{scope}.{clean_name(first.name)}" if scope in names else scope
        names.add(name)
        bearing = [k for k in members if layout.columns[k].spec.kind != "state"] or members
        values = [track.values[k] for k in bearing]
        good = [row for row, some in enumerate(zip(*values, strict=True)) if not all(map(isnan, some))]
        step_s = _find_step([track.times[row] for row in good])
        specs = []
        for k in members:
            spec = layout.columns[k].spec
            if spec.kind == "power" and spec.update_s is None:
                spec = replace(spec, update_s=updates_s.get(k) or min(step_s, USUAL_UPDATE_S))
            specs.append(spec)
        joined = "-".join(spec.name for spec in specs)
        table = joined if len(joined) <= 60 else f"{joined[:40]}-{crc32(joined.encode()):08x}"
        stream = Stream(
            name,
            table,
            scope,
            step_s,
            tuple(specs),
            first.parent,
            device=track.device,
            sums=first.sums,
            parts=first.parts,
        )
        bad = [b for b in track.bad if b.column in bearing]
        events = [*_list_gaps(track, good, bad, (layout.label, name), step_s), *_list_texts(track, layout, members)]
        found.append(Fetched(stream, Rows(track.times, [track.values[k] for k in members]), track.host, events))
    return found


def _list_gaps(
    track: Track, good: Sequence[int], bad: Sequence[BadCell], names: tuple[str, str], step_s: float
) -> Iterator[dict[str, Any]]:
    """Yield events where readings are missing for longer than usual, or text stands in their place, with the reason."""
    (label, stream), times, count = names, track.times, len(track.times)
    seen = [times[row] for row in good]
    wrong = {bisect_left(seen, cell.t_ns): cell for cell in bad}  # by the place of the next reading
    gaps, longest_ns = 0, HOLD * step_s * NS
    for k in range(len(good) + 1):
        # Before the first reading there may be rows, after the last one too: then the gap has one end only.
        before, after = good[k - 1] if k else 0, good[k] if k < len(good) else None
        length = times[count - 1 if after is None else after] - times[before]
        if length <= longest_ns and k not in wrong and good:
            continue
        gaps += 1
        if gaps > MOST_GAPS:
            continue
        has_rows = (count if after is None else after) - before > 1
        reason, line = "no value in the file" if has_rows else "no rows in the file", track.lines[before]
        if k in wrong:
            reason, line = wrong[k].reason or f"{wrong[k].text!r} is no number", wrong[k].line
        about = {"meter": label, "stream": stream, "from": times[before]}
        yield {"t": times[before], "event": "gap", **about, "reason": reason, "error": "ReadFailed", "line": line}
        if after is not None:
            yield {"t": times[after], "event": "gap-end", **about, "to": times[after]}
    if gaps > MOST_GAPS:
        what = f"{stream}: {gaps - MOST_GAPS} more gaps are not listed"
        yield {"t": times[0], "event": "problem", "meter": label, "what": what}


def _list_texts(track: Track, layout: Layout, members: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a problem for the cells of a column that hold text in place of numbers, and one for its single zeros."""
    for k, kind in ((k, kind) for k in members for kind in ("numbers", "readings")):
        bad = [b for b in track.bad if b.column == k and bool(b.reason) == (kind == "readings")]
        if bad:
            first = f"line {bad[0].line}: {bad[0].reason}" if bad[0].reason else f"line {bad[0].line}, {bad[0].text!r}"
            what = f"{layout.columns[k].name}: {len(bad)} cells are not {kind} (first: {first})"
            yield {"t": bad[0].t_ns, "event": "problem", "meter": layout.label, "what": what}
