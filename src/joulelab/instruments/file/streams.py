"""Sort the cells of a file into streams, and say what is missing, doubtful or no number."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import isnan, nan
from typing import TYPE_CHECKING, Any, overload
from zlib import crc32

from joulelab.core.clock import NS
from joulelab.core.spec import Fetched, Stream
from joulelab.instruments.file.cells import NotANumber, clean

if TYPE_CHECKING:
    from joulelab.instruments.file.layout import Column, Layout

HOLD = 3.0  # a reading stands for so many usual steps; what is longer is a gap, as in the analysis
MOST_GAPS = 1000  # gaps of a stream that are told one by one
# A number with a decimal comma, maybe with points between thousands, maybe with a unit.
_COMMA = re.compile(r"[-+]?\d[\d. ']*,\d+(?:[eE][-+]?\d+)?\s*[A-Za-z]*")
# A number with commas between thousands; with one comma and no point it may also be a decimal comma: 1,234.
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?\s*[A-Za-z]*")
# A number with something else between thousands: 1 300, 1'300, 1_300, or 1.300 where the decimal mark is a comma.
_SEPARATED = re.compile(r"[-+]?\d{1,3}([.'’_ \u00a0\u202f])\d{3}(?:\1\d{3})*(?:[.,]\d*)?\s*[A-Za-z]*")
# More text than this, as a share and in cells or rows, is no accident: a reading too high for the file, another layout.
MOST_TEXT, FEW = 0.05, 2
# Up to so many rows of 0 W between powers above so many W are no readings: nothing is switched off for so short a time.
MOST_ZEROS, LEAST_ON_W = 3, 20.0
# A stamp is the time at which a row was written. How old the value was is not in a file: the sensor's own update, where
# rows come more often and repeat its values; else up to a second, as for PDUs, BMCs and GPUs, or a step that is less.
USUAL_UPDATE_S = 1.0
LEAST_RUNS, REGULAR, MOST_COMPARED = 20, 0.2, 100_000
BURST = 0.05  # of the time between bursts: rows so close together were written at once
Event = dict[str, Any]
Row = tuple[int, int, Sequence[float]]


class Rows(Sequence[Row]):
    """Show columns of numbers as rows, without making them before they are asked for."""

    def __init__(self, times: Sequence[int], columns: Sequence[Sequence[float]]) -> None:
        self.times = times
        self.columns = columns

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Row | Rows:
        if isinstance(index, slice):
            return Rows(self.times[index], [c[index] for c in self.columns])
        return self.times[index], self.times[index], tuple(c[index] for c in self.columns)

    def __iter__(self) -> Iterator[Row]:
        return zip(self.times, self.times, zip(*self.columns, strict=True), strict=True)


@dataclass(slots=True)
class Bad:
    """Hold a cell that is no reading: its row, column, line, text, and the reason unless it is no number."""

    row: int
    column: int
    line: int
    text: str
    reason: str = ""


@dataclass(slots=True)
class Track:
    """Collect the rows of one device on one host; `values` is a list of numbers for each mapped column."""

    host: str
    device: str
    times: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    values: list[array[float]] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    backward: int = 0
    repeated: int = 0
    first_doubt: int = 0

    def add(self, t_ns: int, line: int, cells: Sequence[str], columns: Sequence[Column]) -> None:
        """Take one row."""
        if self.times:
            last = self.times[-1]
            if t_ns <= last:
                self.backward += t_ns < last
                self.repeated += t_ns == last
                self.first_doubt = self.first_doubt or line
        for k, column in enumerate(columns):
            try:
                value = column.cells.number(cells[column.index])
            except NotANumber as error:
                self.bad.append(Bad(len(self.times), k, line, str(error)[:40]))
                value = nan
            self.values[k].append(value)
        self.times.append(t_ns)
        self.lines.append(line)

    def order(self) -> Sequence[int]:
        """Return the rows in order of time."""
        count = len(self.times)
        return sorted(range(count), key=self.times.__getitem__) if self.backward else range(count)

    def near(self, start_ns: int, end_ns: int) -> list[int] | None:
        """Return the rows in [start, end] and the nearest on both sides, as they stand; None for all of them."""
        times = self.times
        if not times or (min(times) >= start_ns and max(times) <= end_ns):
            return None
        before = max((t for t in times if t < start_ns), default=start_ns)
        after = min((t for t in times if t > end_ns), default=end_ns)
        return [k for k, t in enumerate(times) if before <= t <= after]

    def only(self, rows: Sequence[int]) -> Track:
        """Return a track of some of the rows."""
        place = {row: k for k, row in enumerate(rows)}
        return replace(
            self,
            times=array("q", (self.times[k] for k in rows)),
            lines=array("q", (self.lines[k] for k in rows)),
            values=[array("d", (column[k] for k in rows)) for column in self.values],
            bad=[replace(b, row=place[b.row]) for b in self.bad if b.row in place],
        )


def fetched(track: Track, layout: Layout, period_s: float | None, updates_s: Mapping[int, float]) -> list[Fetched]:
    """Return the streams of one device; `updates_s` are the updates (s) of columns whose values repeat."""
    order = track.order()
    found = []
    for name, members in _grouped(track, layout):
        bearing = [k for k in members if layout.columns[k].spec.kind != "state"] or members
        good = _good(order, [track.values[k] for k in bearing])
        step_s = period_s or _usual_step_s([track.times[order[p]] for p in good])
        known = {k: updates_s.get(k) or min(step_s, USUAL_UPDATE_S) for k in members}
        stream = _stream(name, {k: layout.columns[k] for k in members}, track, step_s, known)
        bad = [b for b in track.bad if b.column in bearing]
        events = [*_gaps(track, order, good, bad, (layout.label, name), step_s), *_texts(track, layout, members)]
        rows = Rows(track.times, [track.values[k] for k in members])
        found.append(Fetched(stream, rows, track.host, events))
    return found


def unreadable(tracks: Sequence[Track], layout: Layout) -> tuple[str, str, str] | None:
    """Return what, why and next where powers and energies hold text in place of numbers; None where they are read.

    One cell that is a number with a separator is enough: such numbers are the large ones. Other text is a gap, unless
    there is much of it.
    """
    mapped = [k for k, column in enumerate(layout.columns) if column.spec.kind != "state"]
    for k in mapped:
        bad = [b for t in tracks for b in t.bad if b.column == k]
        marked = [b for b in bad if any(form.fullmatch(b.text) for form in (_COMMA, _GROUPED, _SEPARATED))]
        if marked:
            return _no_numbers(layout.columns[k], marked, _comma_advice([b.text for b in marked]))
        good = sum(not isnan(v) for t in tracks for v in t.values[k])
        if bad and (not good or is_much(len(bad), good)):
            advice = "map another column, or state how numbers are written: decimal=, thousands=, or "
            return _no_numbers(layout.columns[k], bad, f"{advice}'missing={bad[0].text}'")
        falls = 0 if layout.columns[k].spec.kind == "power" else sum(_count_falls(t, k) for t in tracks)
        if layout.columns[k].spec.modulus is None and is_much(falls, good):
            what, why = f"{layout.columns[k].name!r} is no counter", f"it falls {falls} times in {good} readings"
            return what, why, "map a power instead, or add energies of single rows up before"
    return None


def _count_falls(track: Track, k: int) -> int:
    values = [v for row in track.order() if (v := track.values[k][row]) == v]
    return sum(after < before for before, after in pairwise(values))


def drop_zeros(track: Track, layout: Layout) -> list[str]:
    """Make single powers of 0 W between others gaps; return what longer stretches of 0 W mean."""
    said = []
    for k, column in enumerate(layout.columns):
        values = track.values[k]
        if column.spec.kind != "power" or 0.0 not in values:
            continue
        good = [row for row in track.order() if values[row] == values[row]]
        kept: list[int] = []
        is_zero = [values[row] == 0.0 for row in good]
        for places in (list(some) for zero, some in groupby(range(len(good)), is_zero.__getitem__) if zero):
            before, after = places[0] - 1, places[-1] + 1
            beside = [values[good[p]] for p in (before, after) if 0 <= p < len(good)]
            rows = [good[p] for p in places]
            if len(beside) == 2 and len(rows) <= MOST_ZEROS and min(beside) > LEAST_ON_W:
                reason = f"0 W between {beside[0]:g} and {beside[1]:g} W is no reading"
                track.bad += [Bad(row, k, track.lines[row], "0", reason) for row in rows]
                for row in rows:
                    values[row] = nan
            else:
                kept += rows
        if kept and max(values[row] for row in good if values[row] == values[row]) > LEAST_ON_W:
            missing = "if these are no readings, type missing=0"
            lines = f"{len(kept)} readings of 0 W (first: line {track.lines[kept[0]]})"
            said.append(f"{column.name}: {lines} are taken as switched off; {missing}")
    return said


def is_much(left_out: int, taken: int) -> bool:
    """Return whether so many cells or rows are left out that the rest does not stand for the whole."""
    return left_out > max(FEW, MOST_TEXT * (left_out + taken))


def _comma_advice(texts: Sequence[str]) -> str:
    """Return what to declare where numbers have commas: of decimals, of thousands, or either."""
    other = next((match[1] for text in texts if (match := _SEPARATED.fullmatch(text))), "")
    if other and not any("," in text for text in texts):
        return f'declare the separator of thousands: thousands="{other}"'
    is_grouped = all(map(_GROUPED.fullmatch, texts))
    if is_grouped and any("." in text or text.count(",") > 1 for text in texts):
        return 'declare the separator of thousands: thousands=","'
    more = ' thousands="."' if any("." in text for text in texts) else ""
    decimal = f'declare the decimal comma: decimal=","{more}'
    if not is_grouped:
        return decimal
    return f'{decimal}; or, where {texts[0]} means {texts[0].replace(",", "")}, that of thousands: thousands=","'


def _no_numbers(column: Column, cells: Sequence[Bad], advice: str) -> tuple[str, str, str]:
    first = f"first: line {cells[0].line}, {cells[0].text!r}"
    return f"{column.name!r} cannot be read", f"{len(cells)} cells are no numbers; {first}", advice


def _good(order: Sequence[int], columns: Sequence[Sequence[float]]) -> list[int]:
    """Return the places in the order whose rows have a value; NaN is what differs from itself."""
    if len(columns) == 1:
        only = columns[0]
        return [p for p, row in enumerate(order) if only[row] == only[row]]
    return [p for p, row in enumerate(order) if not all(isnan(column[row]) for column in columns)]


def _texts(track: Track, layout: Layout, members: Sequence[int]) -> Iterator[Event]:
    """Yield how many cells of a column hold text in place of numbers, or single zeros, and where the first is."""
    kinds = [(k, is_zero) for k in members for is_zero in (False, True)]
    for k, is_zero in kinds:
        bad = [b for b in track.bad if b.column == k and bool(b.reason) == is_zero]
        if bad:
            what = f"line {bad[0].line}, {bad[0].text!r}" if not is_zero else f"line {bad[0].line}: {bad[0].reason}"
            what = f"{len(bad)} cells are no {'readings' if is_zero else 'numbers'} (first: {what})"
            what = f"{layout.columns[k].name}: {what}"
            yield {"t": track.times[bad[0].row], "event": "problem", "meter": layout.label, "what": what}


def _grouped(track: Track, layout: Layout) -> list[tuple[str, list[int]]]:
    """Put columns of one scope together, unless their channels have the same name: then they are other sensors."""
    groups: list[tuple[str, list[int]]] = []
    for k, column in enumerate(layout.columns):
        scope = column.scope.replace("{device}", track.device)
        same = [g for g in groups if layout.columns[g[1][0]].scope == column.scope]
        fits = next((g for g in same if all(layout.columns[m].spec.name != column.spec.name for m in g[1])), None)
        if fits is not None and _placed(layout.columns[fits[1][0]]) == _placed(column):
            fits[1].append(k)
        else:
            groups.append((f"{scope}.{clean(column.name)}" if same else scope, [k]))
    return groups


def _placed(column: Column) -> tuple[str | None, str, int]:
    return column.parent, column.sums, column.parts


def find_mixed_rows(track: Track) -> str:
    """Return why rows seem to be of several devices: many have the same time, or come in bursts; else nothing."""
    if is_much(track.repeated, len(track.times)):
        return f"{track.repeated} of {len(track.times)} rows have the time of the row before"
    steps = sorted(after - before for before, after in pairwise(track.times) if after > before)
    short, long = (steps[int(len(steps) * part)] for part in (0.25, 0.97)) if len(steps) >= LEAST_RUNS else (1, 1)
    return f"rows come in bursts, {short / NS:.3g} s and {long / NS:.3g} s apart" if short < BURST * long else ""


def find_update_s(track: Track, k: int) -> float:
    """Return how often a column shows a new value (s) where rows repeat it regularly, else 0.

    Values that stay because the load does change after times of any length, those of a sensor after whole updates.
    """
    values, changes, last = track.values[k], list[int](), nan
    for row in track.order()[:MOST_COMPARED]:
        value = values[row]
        if not isnan(value) and value != last:
            changes.append(track.times[row])
            last = value
    runs = sorted(after - before for before, after in pairwise(changes[1:]))
    if len(runs) < LEAST_RUNS:
        return 0.0
    shortest_s, middle_s = runs[len(runs) // 20] / NS, runs[len(runs) // 2] / NS
    is_regular = shortest_s > 1.5 * _usual_step_s(track.times) and shortest_s > REGULAR * middle_s
    return shortest_s if is_regular else 0.0


def _stream(
    name: str, members: Mapping[int, Column], track: Track, step_s: float, updates_s: Mapping[int, float]
) -> Stream:
    columns = [*members.values()]
    first = columns[0]
    unstated = {k for k, c in members.items() if c.spec.kind == "power" and c.spec.update_s is None}
    channels = tuple(replace(c.spec, update_s=updates_s[k]) if k in unstated else c.spec for k, c in members.items())
    joined = "-".join(c.name for c in channels)
    table = joined if len(joined) <= 60 else f"{joined[:40]}-{crc32(joined.encode()):08x}"
    return Stream(
        name,
        table,
        first.scope.replace("{device}", track.device),
        step_s,
        channels,
        first.parent,
        device=track.device,
        sums=first.sums,
        parts=first.parts,
    )


def _usual_step_s(times: Sequence[int]) -> float:
    steps = sorted(after - before for before, after in pairwise(times) if after > before)
    return steps[len(steps) // 2] / NS if steps else 1.0


def _gaps(
    track: Track, order: Sequence[int], good: list[int], bad: Sequence[Bad], names: tuple[str, str], step_s: float
) -> Iterator[Event]:
    """Yield where readings are missing for longer than usual, or where text stands in their place, with the reason."""
    times = track.times if isinstance(order, range) else [track.times[row] for row in order]
    limit = HOLD * step_s * NS
    found: dict[tuple[int, int], Bad | None] = {}
    if good:
        # Before the first value there may be rows, after the last one too: then the gap has one end only.
        inner = [(p, q) for p, q in pairwise(good) if times[q] - times[p] > limit]
        found = dict.fromkeys([(0, good[0])] * (times[good[0]] - times[0] > limit) + inner)
    place = {row: p for p, row in enumerate(order)} if bad else {}
    for wrong in bad:
        k = bisect_left(good, place[wrong.row])
        found[good[k - 1] if k else 0, good[k] if k < len(good) else len(order)] = wrong
    if not good or times[-1] - times[good[-1]] > limit:
        found.setdefault((good[-1] if good else 0, len(order)), None)
    ordered = sorted(found.items())
    for (p, q), cell in ordered[:MOST_GAPS]:
        line = cell.line if cell else track.lines[order[p]]
        to = times[q] if q < len(order) else None
        yield from _gap(names, (times[p], to), _reason(cell, q - p - 1), line)
    if len(ordered) > MOST_GAPS:
        what = f"{names[1]}: {len(ordered) - MOST_GAPS} more gaps are not listed"
        yield {"t": track.times[0], "event": "problem", "meter": names[0], "what": what}


def _reason(wrong: Bad | None, empty: int) -> str:
    if wrong is not None:
        return wrong.reason or f"{wrong.text!r} is no number"
    return "no value in the file" if empty else "no rows in the file"


def _gap(names: tuple[str, str], between: tuple[int, int | None], reason: str, line: int) -> Iterator[Event]:
    since, to = between
    where = {"meter": names[0], "stream": names[1], "from": since}
    yield {"t": since, "event": "gap", **where, "reason": reason, "error": "ReadFailed", "line": line}
    if to is not None:
        yield {"t": to, "event": "gap-end", **where, "to": to}
