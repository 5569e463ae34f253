"""Check figures that other programs state: whether each follows from the others beside it.

`check_codecarbon` takes the rows of an `emissions.csv`, `check_power_log` the readings of an analyzer and the session
of MLPerf's power controller around them. Both return checks, codes with numbers; `ok` means that the figure follows.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import statistics
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from joulelab.analysis.result import Check
from joulelab.core.quantity import J_PER_KWH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.analysis.result import CheckStatus

SUM_SHARE = 0.01  # figures of one row are the same numbers, added up or divided once more
POWER_RATIO = 1.6  # CodeCarbon 2 states its last power, not the mean: only a large difference is a doubt
FAR_RATIO = 20.0  # twice the power of a busy H100 by that of an idle one: in all parts, the duration is wrong
MOST_W = 100_000.0  # of one part of a node
MOST_KG_PER_KWH = 2.0  # no grid has more: the highest figure of our tables is 1.3
LEAST_KG_PER_KWH = 0.001  # countries with water and nuclear power have 0.01 to 0.03
SHIFT_S = 2.0  # CodeCarbon writes times in whole seconds
LEAST_SAME = 3  # equal powers in so many rows are no measurement
UNITS = {1e3: "Wh", 3.6e6: "J", 3.6e3: "kJ", 1e-3: "MWh"}  # by the ratio of a number in them to one in kWh
UNIT_SPREAD = 2.0  # a ratio within this factor of one of the units points to it
PARTS = ("gpu", "cpu", "ram")
NUMBERS = (
    "duration", "emissions", "emissions_rate", "energy_consumed", "pue",
    *(f"{part}_energy" for part in PARTS), *(f"{part}_power" for part in PARTS),
)  # fmt: skip
# Rules of MLPerf's power measurement (mlcommons/power-dev, commit 02f42536).
SAMPLE_S, SAMPLE_SLACK = 1.0, 0.05
GAP_STEPS = 1.5  # a step of more than so many usual ones lacks a reading
MOST_CLOCK_S = 0.5
MOST_UNCERTAINTY = 0.01
CHANNEL_SHARE = 0.001
MEAN_SHARE = 1e-5  # PTDaemon prints its mean with ten digits
PRODUCT_SHARE = 0.02  # W = V x A x PF: within 0.03 % in each reading of a WT330; others may average each by itself
STUCK_READINGS = 120  # equal ones, one a second: a node's power in 0.1 W has 3 at most in a published log
ACCEPTED_ANALYZER = re.compile(r"YokogawaWT(210|310E?|330E?|500)(_multichannel|_DC)?")


# CodeCarbon ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatedRow:
    """Hold one row of an `emissions.csv`: numbers by column (None: empty), end (UTC s), and names."""

    line: int
    numbers: Mapping[str, float | None]
    end_s: float | None
    run_id: str = ""
    machine: str = ""
    country: str = ""
    cells: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Return `line 3`."""
        return f"line {self.line}"

    @property
    def parts_kwh(self) -> float:
        """Return the sum of the devices' energies, of those that are there."""
        return sum(self.numbers.get(f"{part}_energy") or 0.0 for part in PARTS)

    @property
    def pue(self) -> float:
        """Return the PUE that energies include, and powers do not (CodeCarbon, pull request 1373)."""
        return max(self.numbers.get("pue") or 1.0, 1.0)

    @property
    def start_s(self) -> float | None:
        """Return the begin of the row, by its end and its duration."""
        duration = self.numbers.get("duration")
        return None if self.end_s is None or duration is None else self.end_s - duration


def read_codecarbon_rows(
    names: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]]
) -> tuple[list[StatedRow], list[Check]]:
    """Read rows of text; a cell that is no number is a failed check, and counts as empty."""
    found, checks = [], []
    for line, cells in rows:
        by_name = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
        numbers: dict[str, float | None] = {}
        for name in NUMBERS:
            numbers[name] = _read_number(by_name.get(name, ""))
            value = numbers[name]
            if value is not None and not 0 <= value < math.inf:
                checks.append(
                    Check("codecarbon.cell", "failed", f"line {line}", texts={"column": name, "text": by_name[name]})
                )
                numbers[name] = None
        end_s = _read_time(by_name.get("timestamp", ""))
        if end_s is None:
            texts = {"column": "timestamp", "text": by_name.get("timestamp", "")}
            checks.append(Check("codecarbon.cell", "failed", f"line {line}", texts=texts))
        machine = "/".join(by_name.get(name, "") for name in ("os", "cpu_model", "gpu_model"))
        labels = by_name.get("run_id", ""), machine, by_name.get("country_name", "")
        found.append(StatedRow(line, numbers, end_s, *labels, tuple(cells)))
    return found, checks


def _read_number(text: str) -> float | None:
    """Return a number, NaN for another text, None for an empty cell."""
    if not text or text.lower() in ("nan", "none", "null"):
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan


def _read_time(text: str) -> float | None:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()


def check_codecarbon(rows: Sequence[StatedRow]) -> list[Check]:
    """Check each row by itself, then the rows beside each other."""
    checks = [check for row in rows for check in _check_row(row)]
    return [
        *checks,
        *_check_repeats(rows),
        *_check_times(rows),
        *_check_intensities(rows),
        *_check_constant_powers(rows),
    ]


def list_compared(row: StatedRow) -> dict[str, bool]:
    """Return which comparisons the figures of a row allow: an empty cell or a missing column is no zero."""
    numbers = row.numbers
    total, duration, emissions = (numbers.get(name) for name in ("energy_consumed", "duration", "emissions"))
    parts = [(numbers.get(f"{part}_energy"), numbers.get(f"{part}_power")) for part in PARTS]
    has_parts = all(kwh is not None for kwh, _ in parts) or not _differ(row.parts_kwh, total or 0.0, SUM_SHARE)
    powers = [power_w for kwh, power_w in parts if kwh or (kwh is not None and power_w)]
    return {
        "sum": total is not None and has_parts,
        "power": bool(duration and powers) and None not in powers,
        "rate": bool(duration) and emissions is not None and numbers.get("emissions_rate") is not None,
        "intensity": bool(total) and emissions is not None,
    }


def _check_row(row: StatedRow) -> Iterator[Check]:
    numbers, duration = row.numbers, row.numbers.get("duration")
    total, parts = numbers.get("energy_consumed"), row.parts_kwh
    if total is None:
        yield Check("codecarbon.no-energy", "failed", row.place)
    elif _differ(parts, total, SUM_SHARE) and (list_compared(row)["sum"] or parts > total):
        sums = {"parts_j": parts * J_PER_KWH, "total_j": total * J_PER_KWH}
        yield Check("codecarbon.sum", "failed", row.place, sums)
    if not duration:
        yield Check("codecarbon.no-duration", "failed", row.place)
        return
    for part in PARTS:
        yield from _check_power(row, part, duration)
    emissions, rate = numbers.get("emissions"), numbers.get("emissions_rate")
    if emissions is not None and rate is not None and _differ(emissions / duration, rate, SUM_SHARE):
        yield Check("codecarbon.rate", "failed", row.place, {"stated": rate * 1e6, "found": emissions / duration * 1e6})
    if emissions is not None and total and not 0 <= emissions / total <= MOST_KG_PER_KWH:
        yield Check("codecarbon.intensity", "failed", row.place, {"g_per_kwh": emissions / total * 1e3})
    elif emissions is not None and total and emissions / total < LEAST_KG_PER_KWH:
        yield Check("codecarbon.low-intensity", "warning", row.place, {"g_per_kwh": emissions / total * 1e3})
    if row.pue > 1.0:
        yield Check("codecarbon.pue", "note", row.place, {"pue": row.pue})


def _check_power(row: StatedRow, part: str, duration_s: float) -> Iterator[Check]:
    """Compare energy / duration with the stated power; a factor of 1000 or so points to another unit."""
    kwh, power_w = row.numbers.get(f"{part}_energy"), row.numbers.get(f"{part}_power")
    if kwh is None or not (kwh or power_w):
        return
    mean_w, place = _find_mean_w(row, part, duration_s), f"{row.place}, {part}"
    ratio = mean_w / power_w if power_w else math.inf
    for factor, unit in UNITS.items():
        if factor / UNIT_SPREAD < ratio < factor * UNIT_SPREAD:
            texts = {"unit": unit, "column": f"{part}_energy"}
            yield Check("codecarbon.unit", "failed", place, {"mean_w": mean_w, "power_w": power_w or 0.0}, texts)
            return
    if mean_w > MOST_W:
        yield Check("codecarbon.impossible", "failed", place, {"mean_w": mean_w, "most_w": MOST_W})
    elif power_w == 0:
        yield Check("codecarbon.zero-power", "failed", place, {"mean_w": mean_w})
    elif power_w and not 1 / POWER_RATIO < ratio < POWER_RATIO:
        numbers = {"mean_w": mean_w, "power_w": power_w, "duration_s": duration_s}
        yield Check("codecarbon.power", "failed" if _is_far_off(row, duration_s) else "warning", place, numbers)


def _find_mean_w(row: StatedRow, part: str, duration_s: float) -> float:
    return (row.numbers.get(f"{part}_energy") or 0.0) * J_PER_KWH / duration_s / row.pue


def _is_far_off(row: StatedRow, duration_s: float) -> bool:
    """Return whether all parts are far above their power: the last power of one part may be low, that of memory not."""
    powers = {part: row.numbers.get(f"{part}_power") for part in PARTS if row.numbers.get(f"{part}_energy")}
    found = [_find_mean_w(row, part, duration_s) / power_w for part, power_w in powers.items() if power_w]
    return min(found, default=0.0) > FAR_RATIO


def _differ(one: float, other: float, share: float) -> bool:
    return abs(one - other) > share * max(abs(one), abs(other))


def _check_repeats(rows: Sequence[StatedRow]) -> Iterator[Check]:
    """Find rows that are there twice, and rows of one run of which the last one includes the others."""
    lines: dict[tuple[str, ...], int] = {}
    last: dict[str, StatedRow] = {}
    for row in rows:
        if row.cells in lines:
            yield Check("codecarbon.duplicate", "failed", row.place, {"line": lines[row.cells]})
            continue
        lines[row.cells] = row.line
        before = last.get(row.run_id) if row.run_id else None
        last[row.run_id] = row
        if before is None or before.start_s is None or row.start_s is None:
            continue
        if abs(before.start_s - row.start_s) <= SHIFT_S:
            now, then = (one.numbers.get("energy_consumed") or one.parts_kwh for one in (row, before))
            is_less = now < then
            code = "codecarbon.falls" if is_less else "codecarbon.stage"
            status: CheckStatus = "failed" if is_less else "note"
            yield Check(code, status, before.place, {"line": row.line})


def _check_times(rows: Sequence[StatedRow]) -> Iterator[Check]:
    """Find rows that are not in order, and runs on one machine at the same time, which count each other's energy."""
    timed = [row for row in rows if row.end_s is not None]
    for before, row in pairwise(timed):
        if (row.end_s or 0.0) < (before.end_s or 0.0) - SHIFT_S:
            yield Check(
                "codecarbon.order", "warning", row.place, {"back_s": (before.end_s or 0.0) - (row.end_s or 0.0)}
            )
    begun = [(row.start_s, row.end_s or 0.0, row) for row in timed if row.start_s is not None]
    reached: dict[str, tuple[float, StatedRow]] = {}
    for start_s, end_s, row in sorted(begun, key=lambda span: span[:2]):
        to_s, before = reached.get(row.machine, (-math.inf, row))
        if start_s < to_s - SHIFT_S and row.run_id != before.run_id:
            overlap_s = min(to_s, end_s) - start_s
            yield Check("codecarbon.overlap", "warning", row.place, {"line": before.line, "overlap_s": overlap_s})
        if end_s > to_s:
            reached[row.machine] = end_s, row


def _check_intensities(rows: Sequence[StatedRow]) -> Iterator[Check]:
    """Find countries whose rows have different carbon intensities."""
    found: dict[str, list[tuple[float, StatedRow]]] = {}
    for row in rows:
        emissions, total = row.numbers.get("emissions"), row.numbers.get("energy_consumed")
        if row.country and emissions is not None and total and emissions / total <= MOST_KG_PER_KWH:
            found.setdefault(row.country, []).append((emissions / total * 1e3, row))
    for country, figures in found.items():
        low, high = min(g for g, _ in figures), max(g for g, _ in figures)
        if _differ(low, high, SUM_SHARE):
            yield Check("codecarbon.intensities", "warning", country, {"low": low, "high": high})


def _check_constant_powers(rows: Sequence[StatedRow]) -> Iterator[Check]:
    for part in PARTS:
        powers = [row.numbers.get(f"{part}_power") or 0.0 for row in rows if row.numbers.get(f"{part}_energy")]
        if len(powers) >= LEAST_SAME and len(set(powers)) == 1 and powers[0] > 0:
            yield Check("codecarbon.constant", "note", part, {"power_w": powers[0], "rows": len(powers)})


# MLPerf ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PowerLog:
    """Hold the readings of an analyzer: times (s), power (W; NaN = not read), and the sums of the channels (W).

    `products` are pairs: volts x amperes x power factor (W), and the share by which the printed digits round it.
    """

    times_s: Sequence[float]
    watts: Sequence[float]
    channels_w: Sequence[float] = ()
    products: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class PowerControl:
    """Hold what MLPerf's power controller recorded: replies of PTDaemon, times of phases, hashes of files.

    `watts` are mean, lowest, highest (W) and the number of samples that PTDaemon states for the testing run;
    `uncertainty` is its mean uncertainty as a share; `phases` are the four times of the testing run by server and
    client (s); `hashes` are (name, stated SHA-1, found SHA-1 or None). `least_s` is the shortest time that the load
    generator was asked to run; `missing` has the files that cannot be read, and whether they exist. `rates` are
    results: name, number in the detail log, number in the summary beside it, half of its last digit.
    """

    watts: tuple[float, float, float, int] | None = None
    uncertainty: float | None = None
    server_s: tuple[float, ...] = ()
    client_s: tuple[float, ...] = ()
    hashes: Sequence[tuple[str, str, str | None]] = ()
    analyzer: str = ""
    is_range_fixed: bool | None = None
    has_ranging: bool = False
    validity: str = ""
    least_s: float | None = None
    missing: Mapping[str, bool] = field(default_factory=dict)
    rates: Sequence[tuple[str, float, float, float]] = ()


def check_power_log(log: PowerLog, window_s: tuple[float, float] | None, control: PowerControl) -> list[Check]:
    """Check a submission: rate, gaps, window and clocks, then the figures that follow from the log."""
    if window_s is not None and not window_s[0] < window_s[1]:
        window_s = None
    return [
        *_check_rate(log, window_s),
        *_check_window(log, window_s, control),
        *_check_clocks(log, control),
        *_check_replies(log, control),
        *_check_channels(log),
        *_check_products(log),
        *_check_stuck(log),
        *_check_conduct(control),
        *_check_hashes(control),
        *_check_controller(control),
    ]


def _rate_figure(is_right: bool) -> CheckStatus:
    return "ok" if is_right else "failed"


def _check_rate(log: PowerLog, window_s: tuple[float, float] | None) -> Iterator[Check]:
    times = log.times_s
    steps = [b - a for a, b in pairwise(times)]
    if not steps:
        yield Check("mlperf.too-few", "failed", numbers={"readings": len(times)})
        return
    usual = sorted(steps)[len(steps) // 2]
    is_second = abs(usual - SAMPLE_S) <= SAMPLE_SLACK * SAMPLE_S
    yield Check("mlperf.rate", _rate_figure(is_second), numbers={"step_s": usual, "readings": len(times)})
    back = sum(step <= 0 for step in steps)
    if back:
        yield Check("mlperf.order", "failed", numbers={"readings": back})
    low, high = window_s or (times[0], times[-1])
    missing = [w for t, w in zip(times, log.watts, strict=True) if low <= t <= high and math.isnan(w)]
    gaps = [b - a for a, b in pairwise(times) if b - a > GAP_STEPS * usual and b > low and a < high]
    gaps += [usual * len(missing)] if missing else []
    numbers: dict[str, float] = {"gaps": len(gaps)}
    numbers |= {"lost_s": sum(gaps), "longest_s": max(gaps)} if gaps else {}
    yield Check("mlperf.gaps", _rate_figure(not gaps), numbers=numbers)


def _check_window(log: PowerLog, window_s: tuple[float, float] | None, control: PowerControl) -> Iterator[Check]:
    if window_s is None:
        yield Check("mlperf.no-window", "failed")
        return
    begin, end = window_s
    slack = 2 * SAMPLE_S
    is_covered = bool(log.times_s) and log.times_s[0] <= begin + slack and log.times_s[-1] >= end - slack
    yield Check("mlperf.window", _rate_figure(is_covered), numbers={"duration_s": end - begin})
    if control.least_s:
        is_long = end - begin >= control.least_s
        numbers = {"duration_s": end - begin, "least_s": control.least_s}
        yield Check("mlperf.duration", _rate_figure(is_long), numbers=numbers)
    if len(control.server_s) >= 3:
        is_inside = control.server_s[1] <= begin and end <= control.server_s[2]
        numbers = {"before_s": begin - control.server_s[1], "after_s": control.server_s[2] - end}
        yield Check("mlperf.session", _rate_figure(is_inside), numbers=numbers)


def _check_clocks(log: PowerLog, control: PowerControl) -> Iterator[Check]:
    """Compare the clocks of server and client, and that of the log with the session: PTDaemon runs on the server."""
    if log.times_s and len(control.server_s) >= 4:
        outside_s = max(control.server_s[0] - min(log.times_s), max(log.times_s) - control.server_s[3])
        numbers = {"outside_s": outside_s} if outside_s > 2 * SAMPLE_S else {}
        yield Check("mlperf.log-clock", _rate_figure(not numbers), numbers=numbers)
    pairs = list(zip(control.server_s, control.client_s, strict=False))
    if pairs:
        apart = max(abs(a - b) for a, b in pairs)
        yield Check(
            "mlperf.clocks", _rate_figure(apart <= MOST_CLOCK_S), numbers={"apart_s": apart, "most_s": MOST_CLOCK_S}
        )


def _check_replies(log: PowerLog, control: PowerControl) -> Iterator[Check]:
    """Compare mean, lowest, highest power and the number of samples that PTDaemon states with those of the log."""
    known = [w for w in log.watts if not math.isnan(w)]
    if control.watts is not None and known:
        mean, low, high, count = control.watts
        found = sum(known) / len(known)
        yield Check(
            "mlperf.samples", _rate_figure(count == len(log.watts)), numbers={"stated": count, "found": len(log.watts)}
        )
        yield Check(
            "mlperf.mean",
            _rate_figure(not _differ(mean, found, MEAN_SHARE)),
            numbers={"stated_w": mean, "found_w": found},
        )
        is_same = not _differ(low, min(known), MEAN_SHARE) and not _differ(high, max(known), MEAN_SHARE)
        numbers = {"low_w": low, "high_w": high, "found_low_w": min(known), "found_high_w": max(known)}
        yield Check("mlperf.range", _rate_figure(is_same), numbers=numbers)
    if control.uncertainty is not None:
        share = control.uncertainty
        is_known = 0 <= share <= 1
        numbers = {"share": share, "most": MOST_UNCERTAINTY} if is_known else {"most": MOST_UNCERTAINTY}
        yield Check("mlperf.uncertainty", _rate_figure(is_known and share <= MOST_UNCERTAINTY), numbers=numbers)


def _check_channels(log: PowerLog) -> Iterator[Check]:
    pairs = [(w, s) for w, s in zip(log.watts, log.channels_w, strict=False) if w > 0 and not math.isnan(s)]
    if pairs:
        worst = max(abs(w - s) / w for w, s in pairs)
        yield Check("mlperf.channels", "ok" if worst <= CHANNEL_SHARE else "warning", numbers={"share": worst})


def _check_products(log: PowerLog) -> Iterator[Check]:
    """Compare power with volts x amperes x power factor of the same line, by the medians of share and rounding."""
    pairs = [(w / p, r) for w, (p, r) in zip(log.watts, log.products, strict=False) if w > 0 and p > 0]
    if pairs:
        ratio, rounding = (statistics.median(column) for column in zip(*pairs, strict=True))
        is_same = abs(ratio - 1) <= PRODUCT_SHARE + rounding
        yield Check("mlperf.product", _rate_figure(is_same), numbers={"share": ratio, "most": PRODUCT_SHARE + rounding})


def _check_stuck(log: PowerLog) -> Iterator[Check]:
    count, watts = max(((len(list(same)), w) for w, same in groupby(log.watts) if not math.isnan(w)), default=(0, 0.0))
    if count >= STUCK_READINGS:
        yield Check("mlperf.stuck", "warning", numbers={"equal": count, "watts": watts})


def _check_conduct(control: PowerControl) -> Iterator[Check]:
    if control.analyzer:
        model = control.analyzer.partition(",")[0]
        is_accepted = ACCEPTED_ANALYZER.fullmatch(model) is not None
        yield Check("mlperf.analyzer", "ok" if is_accepted else "failed", texts={"model": model})
    if control.is_range_fixed is not None:
        yield Check("mlperf.ranging", _rate_figure(control.has_ranging and control.is_range_fixed))
    if control.validity:
        is_valid = control.validity == "VALID"
        yield Check("mlperf.validity", "ok" if is_valid else "failed", texts={"validity": control.validity})
    for name, detail, summary, half_digit in control.rates:
        is_same = abs(detail - summary) <= 2 * half_digit + MEAN_SHARE * abs(detail)
        yield Check("mlperf.summary", _rate_figure(is_same), name, {"detail": detail, "summary": summary})


def _check_hashes(control: PowerControl) -> Iterator[Check]:
    changed = [name for name, stated, found in control.hashes if found is not None and found != stated]
    absent = [name for name, _, found in control.hashes if found is None]
    same = len(control.hashes) - len(changed) - len(absent)
    for name in changed:
        yield Check("mlperf.changed", "failed", name)
    if same:
        yield Check("mlperf.unchanged", "ok", numbers={"files": same})
    if absent:
        yield Check("mlperf.absent", "note", numbers={"files": len(absent)}, texts={"names": ", ".join(absent)})


def _check_controller(control: PowerControl) -> Iterator[Check]:
    for name, is_there in control.missing.items():
        if is_there:
            yield Check("mlperf.unreadable", "failed", name)
        else:
            yield Check("mlperf.no-controller", "warning", name)


# Our own runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasurementFacts:
    """Hold how a run was measured, as standards ask: rate, kind and point of its readings, time, nodes.

    `families` are those of the counted scopes; `rate_hz` is that of the slowest; `coverage` the lowest share of the
    time with readings; `machine_nodes` is None if nobody stated the size of the machine.
    """

    families: tuple[str, ...]
    is_counter: bool
    is_estimate: bool
    rate_hz: float
    coverage: float
    duration_s: float
    idle_s: float
    mean_w: float
    nodes: int
    machine_nodes: int | None = None
    has_analyzer: bool = False


@dataclass(frozen=True, slots=True)
class StandardRow:
    """Hold one aspect: the level of a run (0: none; None: not known), and a code for what the next level needs.

    `condition` is a code for something that a run does not record, and that the level depends on.
    """

    aspect: str
    level: int | None
    needs: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    condition: str = ""


UPSTREAM = ("node.ac", "outlet", "psu", "rack", "job")
WHOLE_NODE = (*UPSTREAM, "node.dc", "psu.dc")
LEAST_COVERED = 0.99
LEAST_RUN_S, LEAST_READINGS = 60.0, 10  # of the core phase, and of a counter within it (EE HPC WG)
LEAST_NODES, ENOUGH_W = 15, 40_000.0  # nodes for levels 1 and 2, and a power that is enough for level 1


def judge_levels(facts: MeasurementFacts) -> list[StandardRow]:
    """Return the aspects of the EE HPC WG methodology (version 2.0), each with its level; `verify.md` has the table.

    The run stands for its core phase: it contains it. What a run does not record is a condition of its level: that its
    nodes are the whole machine, the network between them, the losses of supplies behind which a meter measures.
    """
    rows = [_judge_sampling(facts), _judge_time(facts), _judge_machine(facts)]
    is_node = bool(facts.families) and all(family in WHOLE_NODE for family in facts.families) and not facts.is_estimate
    if not is_node:
        return [*rows, StandardRow("subsystems", 0, "node"), StandardRow("point", 0, "upstream")]
    is_network = max(facts.nodes, facts.machine_nodes or 1) > 1
    rows.append(StandardRow("subsystems", 1, "network", condition="network" if is_network else ""))
    is_upstream = all(family in UPSTREAM for family in facts.families)
    behind = StandardRow("point", 1, "upstream", condition="losses")
    return [*rows, StandardRow("point", 3) if is_upstream else behind]


def find_level(rows: Sequence[StandardRow]) -> int:
    """Return the level of a run: the lowest of its aspects; an unknown one does not raise or lower it."""
    return min((row.level for row in rows if row.level is not None), default=0)


def _judge_sampling(facts: MeasurementFacts) -> StandardRow:
    numbers = {"rate_hz": facts.rate_hz}
    if facts.is_estimate or not facts.families:
        return StandardRow("sampling", 0, "meter", numbers)
    if facts.is_counter:
        is_dense = facts.rate_hz * facts.duration_s >= LEAST_READINGS
        return StandardRow("sampling", 3 if is_dense else 1, "" if is_dense else "readings", numbers)
    is_second = facts.rate_hz >= 1 - SAMPLE_SLACK
    return StandardRow("sampling", 2 if is_second else 0, "counter" if is_second else "second", numbers)


def _judge_time(facts: MeasurementFacts) -> StandardRow:
    numbers = {"coverage": facts.coverage, "idle_s": facts.idle_s, "duration_s": facts.duration_s}
    if facts.coverage < LEAST_COVERED:
        return StandardRow("time", 0, "gaps", numbers)
    if facts.duration_s < LEAST_RUN_S:
        return StandardRow("time", 0, "minute", numbers)
    return StandardRow("time", 3, "", numbers) if facts.idle_s > 0 else StandardRow("time", 1, "idle", numbers)


def _judge_machine(facts: MeasurementFacts) -> StandardRow:
    numbers = {"nodes": facts.nodes, "mean_w": facts.mean_w}
    if facts.machine_nodes is None:
        return StandardRow("machine", None, "machine-nodes", numbers, "whole-machine")
    share = facts.nodes / facts.machine_nodes
    numbers["share"] = share
    if share >= 1:
        return StandardRow("machine", 3, "", numbers)
    is_sample = facts.nodes >= LEAST_NODES
    if is_sample and share >= 1 / 8 and facts.mean_w >= 10_000:
        return StandardRow("machine", 2, "all-nodes", numbers)
    is_first = (is_sample and share >= 1 / 10 and facts.mean_w >= 2_000) or facts.mean_w >= ENOUGH_W
    return StandardRow("machine", 1 if is_first else 0, "eighth" if is_first else "tenth", numbers)


def judge_mlperf(facts: MeasurementFacts) -> list[StandardRow]:
    """Return the sampling rules of MLPerf Power: level 1 if a run meets the rule, 0 if not."""
    is_wall = bool(facts.families) and all(family in UPSTREAM for family in facts.families) and not facts.is_estimate
    is_second = facts.rate_hz >= 1 - SAMPLE_SLACK and bool(facts.families)
    return [
        StandardRow("wall", int(is_wall), "" if is_wall else "upstream"),
        StandardRow("second", int(is_second), "" if is_second else "second", {"rate_hz": facts.rate_hz}),
        StandardRow("whole", int(facts.coverage >= LEAST_COVERED), "" if facts.coverage >= LEAST_COVERED else "gaps"),
        StandardRow("analyzer", int(facts.has_analyzer), "" if facts.has_analyzer else "analyzer"),
        StandardRow("ptdaemon", 0, "ptdaemon"),
    ]
