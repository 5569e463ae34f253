"""Format numbers for people: rounded to their uncertainty, with SI prefixes, as durations, shares and names.

One style for terminal, pages, papers and Python; `round_interval` in core/quantity.py has the rule of the digits:

- `4.8 ± 0.4 kJ`: the uncertainty has one digit, or two if the first is 1; the value ends at the same place.
- `4.83 kJ`: a figure that stands without its interval keeps one digit more; four digits if the accuracy is unknown.
  Money and CO2e keep none more: they also stand beside their intervals, in comparisons and on pages.
- `too short to measure`, `not resolved`: in place of a figure that is smaller than its interval.
- `1,990 tokens/s`: a comma between thousands, a point before decimals, SI prefixes instead of exponents.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from joulelab.core.quantity import (
    J_PER_KWH,
    count_decimals,
    find_exponent,
    format_decimals,
    round_interval,
    round_number,
)
from joulelab.core.text import SERVED_TWIN, escape_unprintable, name_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.core.quantity import Quantity

NOTHING = "-"
ACCURACY_UNKNOWN = "accuracy unknown"
# Instead of a figure whose interval is larger than its value: in sentences, in cells of tables, and where the time is
# not the reason or the figure is derived (a rest, a difference, a gain).
TOO_SHORT, TOO_SHORT_CELL, NOT_RESOLVED = "too short to measure", "too short", "not resolved"
WORDS = (NOTHING, TOO_SHORT, TOO_SHORT_CELL, NOT_RESOLVED)  # texts without a number: no unit, no mark
LONGER_HELPS = ("edge", "quantum", "sampling", "missed", "lag", "clock", "guide")  # kinds of terms that time reduces
WIDE = 0.2  # an interval of more than 20 % is shown in percent too, so that readers notice it
PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E", 21: "Z"}
PREFIXED = ("FLOP",)  # kinds of work that are units: their amounts have SI prefixes
MOST_OF_FACT = 48  # letters of a fact in tables; JSON has the whole fact
FORM = "folder in the form of "
SMALLEST, LARGEST = 1e-9, 1e15  # of numbers that are written without an exponent
SMALL = 0.01  # energies per unit of work below this have a prefix, in a column that is in J otherwise
WORTH_KWH = 0.1  # energies from this many kWh on are shown in kWh


def find_prefix(largest: float) -> tuple[float, str]:
    """Return divisor and SI prefix for values up to `largest`."""
    size = abs(largest)
    if not math.isfinite(size) or size == 0:
        return 1.0, ""
    # Four digits stay together: 9999.6 rounds to 10.00 k, not to 10000.
    exponent = 3 * math.floor(math.log10(size * (1 + 5e-5)) / 3)
    exponent = min(max(exponent, min(PREFIXES)), max(PREFIXES))
    return 10.0**exponent, PREFIXES[exponent]


def choose_scale(values: Iterable[float | None], unit: str) -> tuple[float, str]:
    """Return divisor and prefixed unit for a column of values; powers below 10 kW stay in watts."""
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    if unit == "W" and 0.01 <= largest < 1e4:
        return 1.0, unit
    factor, name = find_prefix(largest)
    return factor, f"{name}{unit}"


def choose_energy_unit(joules: float) -> tuple[float, str]:
    """Return divisor and unit of an energy: kWh from 0.1 kWh up, else joules with a prefix."""
    return (J_PER_KWH, "kWh") if abs(joules) >= WORTH_KWH * J_PER_KWH else choose_scale([joules], "J")


def format_watts(value: float, expanded: float | None = None) -> str:
    """Return a power with the digits that its uncertainty justifies; four if this is unknown."""
    factor, unit = choose_scale([value], "W")
    return f"{format_value(value / factor, None if expanded is None else expanded / factor)} {unit}"


def format_value(value: float, expanded: float | None) -> str:
    """Return a value alone with the digits that its uncertainty justifies; four at most, and if this is unknown."""
    if not value or not expanded or not math.isfinite(value) or not math.isfinite(expanded):
        return format_number(value)
    exponent = find_exponent(value, 4)
    return format_decimals(value, min(count_decimals(value, expanded, digits=2), 3 - exponent))


def format_rounded(value: float, expanded: float | None) -> str:
    """Return a value as it would be with its interval, `0.0083` of `0.0083 ± 0.0005`; four digits if it is unknown."""
    if not expanded or not math.isfinite(value) or not math.isfinite(expanded):
        return format_number(value)
    return round_interval(value, expanded)[0]


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number with the given number of significant digits and without an exponent."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return round_number(value, digits)


def format_interval(
    value: float, expanded: float | None, *, signed: bool = False, unresolved: str = TOO_SHORT_CELL
) -> str:
    """Return `12.34 ± 0.12`, rounded to the uncertainty; `12.34 ± ?` if it is unknown (None), `12.34` if it is zero.

    A figure that is smaller than its interval is the text `unresolved`, except for `signed` values, such as a quality.
    """
    if not math.isfinite(value):
        return NOTHING
    if expanded is None or not math.isfinite(expanded):
        return f"{format_number(value)} ± ?"
    if expanded == 0:
        return format_number(value)
    if not signed and abs(value) < expanded:
        return unresolved
    return " ± ".join(round_interval(value, expanded))


def format_quantity(q: Quantity, unit: str, *, estimate: bool = False, why: str = ACCURACY_UNKNOWN) -> str:
    """Return a quantity with interval and unit; a wide interval also in percent, in brackets.

    `why` is the reason if there is no interval. A quantity that is smaller than its interval is in words.
    """
    value, expanded = q.value, q.expanded
    if not math.isfinite(value):
        return NOTHING
    if not q.is_resolved:
        return word_unresolved(q)
    factor, name = find_prefix(value)
    shown = format_number(value / factor) if expanded is None else format_interval(value / factor, expanded / factor)
    share = f"± {expanded / abs(value) * 100:.0f} %" if expanded is not None and is_wide(value, expanded) else ""
    notes = [share, why if expanded is None else "", "estimate" if estimate else ""]
    text = mark_figure(shown, f"{name}{unit}", estimate=estimate)
    return f"{text} ({', '.join(note for note in notes if note)})" if any(notes) else text


def format_scaled(
    q: Quantity | None, factor: float, unit: str = "", *, estimate: bool = False, is_derived: bool = False
) -> str:
    """Return a quantity divided by a factor, with its interval and unit; `~` before an estimate.

    A derived one (a rest, a difference) that is smaller than its interval is `not resolved`, never `too short`.
    """
    if q is None:
        return NOTHING
    wide = None if q.expanded is None else q.expanded / factor
    unresolved = NOT_RESOLVED if is_derived else word_unresolved(q, is_cell=True)
    return mark_figure(format_interval(q.value / factor, wide, unresolved=unresolved), unit, estimate=estimate)


def mark_figure(text: str, unit: str = "", *, estimate: bool = False) -> str:
    """Return a figure with its unit, and `~` before an estimate; words instead of a figure stay unchanged."""
    return text if text in WORDS else f"{'~' if estimate else ''}{text} {unit}".rstrip()


def word_unresolved(q: Quantity, *, is_cell: bool = False) -> str:
    """Return the words for an energy, power or time that is smaller than its interval, by its largest term."""
    return word_largest_term(q.budget(), is_cell=is_cell)


def word_largest_term(budget: Mapping[str, float | None], *, is_cell: bool = False) -> str:
    """Return the words for a figure that is smaller than its interval, from its uncertainties by kind."""
    sizes = {kind: u or 0.0 for kind, u in budget.items() if kind != "unseen"}
    if max(sizes, key=lambda kind: sizes[kind], default="") not in LONGER_HELPS:
        return NOT_RESOLVED
    return TOO_SHORT_CELL if is_cell else TOO_SHORT


def format_rough(value: float, unit: str, digits: int = 3) -> str:
    """Return an expected figure with three digits and without an interval: `1.23 MJ`."""
    factor, name = find_prefix(abs(value))
    return f"{format_number(value / factor, digits)} {name}{unit}"


def format_joules(joules: float) -> str:
    """Return an energy without an interval: in kWh from 0.1 kWh up, else in joules with a prefix."""
    factor, unit = choose_energy_unit(joules)
    digits = 4 if factor == J_PER_KWH else 3
    return f"{format_number(joules / factor, digits)} {unit}"


def format_relative(q: Quantity) -> str:
    """Return the interval of a quantity in percent of its value: `± 6 %`, `± 0.4 %`; at least one digit."""
    share = 100 * (q.expanded or 0.0) / abs(q.value)
    return f"± {share:.0f} %" if share >= 0.95 else f"± {format_number(share, 1)} %"


def is_wide(value: float, expanded: float | None) -> bool:
    """Return whether an interval is wider than 20 % of its value."""
    return expanded is not None and expanded > WIDE * abs(value)


def format_percent(share: float, *, signed: bool = True) -> str:
    """Return a share of one as percent with two or three digits."""
    if not math.isfinite(share):
        return NOTHING
    size = abs(share) * 100
    decimals = 0 if size >= 99.5 else 1 if size >= 0.95 else 2
    text = format_decimals(share * 100, decimals)
    return f"{'+' if signed and share > 0 and text.strip('0.') else ''}{text} %"  # nothing has no sign


def format_change(share: float, expanded: float | None, *, is_forecast: bool = False) -> str:
    """Return a change (0.1 = 10 %) in percent with its interval, if this is known: `-12.3 ± 1.1 %`.

    A measured change that is smaller than its interval is `not resolved`; a forecast keeps both ends of its range.
    """
    if not expanded or not math.isfinite(share):
        return format_percent(share) + (" ± ?" if expanded is None and math.isfinite(share) else "")
    text = format_signed(100 * share, 100 * expanded, is_forecast=is_forecast)
    return text if text in WORDS else f"{text} %"


def format_signed(value: float, expanded: float, *, is_forecast: bool = False) -> str:
    """Return a difference with its sign and interval: `+0.31 ± 0.04`; one that is smaller is `not resolved`.

    So is one whose interval is not known (NaN: it was without limit before it was stored).
    """
    if (math.isnan(expanded) or abs(value) < expanded) and not is_forecast:
        return NOT_RESOLVED
    text = " ± ".join(round_interval(value, expanded)) if expanded else format_number(value)
    return f"{'+' if value > 0 else ''}{text}"


def format_duration(seconds: float) -> str:
    """Return a time in the units that people use for its length."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995:
        factor, name = find_prefix(seconds)
        return f"{format_number(seconds / factor, 3)} {name}s" if seconds else "0 s"
    if seconds < 99.995:
        return f"{format_number(seconds)} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        whole = round(seconds / 3600)
        return f"{whole // 24} d {whole % 24} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def format_rough_duration(seconds: float) -> str:
    """Return an expected time: in whole seconds if it is below 100 s."""
    return f"{seconds:.0f} s" if seconds < 99.5 else format_duration(seconds)


def format_period(seconds: float | None) -> str:
    """Return a nominal time without trailing zeros: `100 ms`, `1 s`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    factor, name = find_prefix(seconds) if seconds < 1 else (1.0, "")
    return f"{format_plain(seconds / factor, 3)} {name}s"


def format_bytes(count: float) -> str:
    """Return a number of bytes with its prefix (1000-based)."""
    factor, name = find_prefix(count) if count >= 1 else (1.0, "")
    return f"{format_number(count / factor, 3)} {name}B"


def format_amount(value: float) -> str:
    """Return a count as it was reported: whole numbers whole, others with up to five digits."""
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < LARGEST else format_plain(value, 5)


def format_plain(value: float, digits: int = 6) -> str:
    """Return a number that is exact, such as a price or a setting: six digits or those before its point.

    There are no zeros at its end.
    """
    if value and not SMALLEST <= abs(value) < LARGEST:
        return f"{value:.{digits}g}"  # nobody would count its zeros
    text = round_number(value, max(digits, find_exponent(value, digits) + 1))
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_rate(value: float) -> str:
    """Return a number per second with four digits."""
    factor, name = find_prefix(value) if abs(value) >= 1e6 else (1.0, "")
    return f"{format_number(value / factor)}{' ' + name if name else ''}"


def format_work(value: float, kind: str) -> str:
    """Return an amount of work: `640 samples`, `1.234 TFLOP`."""
    return format_rough(value, kind, 4) if kind in PREFIXED else f"{format_amount(value)} {kind}"


def format_work_rate(value: float, kind: str) -> str:
    """Return work per second: `64.1 samples/s`, `340 GFLOP/s`."""
    return format_rough(value, f"{kind}/s", 4) if kind in PREFIXED else f"{format_rate(value)} {kind}/s"


def scale_per_work(values: Iterable[float], kind: str) -> tuple[float, str]:
    """Return the scale of energies per unit of work: `J/sample`, or with a prefix if all are small: `pJ/FLOP`."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    factor, unit = choose_scale([largest], "J") if largest < SMALL else (1.0, "J")
    return factor, f"{unit}/{name_one(kind)}"


def format_quality(value: float) -> str:
    """Return a figure of quality with four digits; `nan` if it is not a number."""
    return format_number(value) if math.isfinite(value) else "nan"


def format_fact(value: str | float | bool, most: int = MOST_OF_FACT) -> str:
    """Return the value of a fact: text of one short line, `yes` or `no`, numbers with up to six digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return shorten_middle(value, most)
    return format_amount(value) if float(value).is_integer() else format_plain(value)


def format_data_name(name: str | float | bool, most: int = MOST_OF_FACT) -> str:
    """Return the name of data, shortened to its distinctive part: `form of cifar-10`."""
    if isinstance(name, str) and len(name) > most and name.startswith(FORM):
        return shorten_middle(f"form of {name.removeprefix(FORM)}", most)
    return format_fact(name, most)


def shorten_middle(text: str, width: int) -> str:
    """Return a text as one line of at most this width, cut in its middle, because names often differ at their ends."""
    flat = escape_unprintable(text[: 2 * width] + text[-2 * width :] if len(text) > 4 * width else text)
    if len(flat) <= width:
        return flat
    end = max(2 * (width - 1) // 3, 0)
    return f"{flat[: max(width - 1 - end, 0)]}…{flat[len(flat) - end :]}"


def name_twins(twins: Sequence[str]) -> str:
    """Name the twins that figures come from: `simulated: twin bnl-h100, virtual time`."""
    virtual = [twin for twin in twins if twin != SERVED_TWIN]
    names = [SERVED_TWIN] if len(virtual) < len(twins) else []
    if virtual:
        names.append(
            f"twin{'s' if len(virtual) > 1 else ''} {', '.join(map(escape_unprintable, virtual))}, virtual time"
        )
    return f"simulated: {'; '.join(names)}"


def join_scopes(scopes: Sequence[str]) -> str:
    """Return a short list of scopes: `gpu:0-7, cpu:0`, `outlet:pdu1.3,4`."""
    numbers: dict[str, list[int]] = {}
    parts: dict[str, str] = {}
    for scope in scopes:
        match = re.fullmatch(r"(.+[:.])(\d+)", scope)
        stem = match[1] if match else scope
        parts.setdefault(stem, scope)
        if match:
            numbers.setdefault(stem, []).append(int(match[2]))
    return ", ".join(_format_range(stem, numbers[stem]) if stem in numbers else scope for stem, scope in parts.items())


def _format_range(stem: str, members: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(set(members)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs]
    return f"{stem}{','.join(texts)}"


def shorten_end(text: str, width: int) -> str:
    """Return a text of at most this width, cut at its end with an ellipsis."""
    flat = escape_unprintable(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: max(width - 1, 0)] + "…"
