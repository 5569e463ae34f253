"""Read the values of knobs as people type them: lists, ranges, watts, percent, megahertz."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Unit = Literal["", "W", "share", "Hz"]
MAX_VALUES = 10_000
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({NUMBER})([A-Za-z%]*):({NUMBER})([A-Za-z%]*):({NUMBER})([A-Za-z%]*)")
_SINGLE = re.compile(rf"({NUMBER})([A-Za-z%]*)")
# What a suffix means: the unit, and what to multiply by.
_POWER: Mapping[str, tuple[Unit, Decimal]] = {
    "": ("W", Decimal(1)),
    "W": ("W", Decimal(1)),
    "%": ("share", Decimal("0.01")),
}
_DEGREES = re.compile(r"\s*(\d+(?:\.\d*)?)\s*(?:°|deg)?C\s*")
_FREQUENCY: Mapping[str, tuple[Unit, Decimal]] = {"": ("Hz", Decimal(10**6)), "MHz": ("Hz", Decimal(10**6))}


@dataclass(frozen=True, slots=True)
class Value:
    """Hold one value of a knob: what stands in the command, the value itself (SI, share of 1), and its unit."""

    text: str
    value: float | int | str
    unit: Unit = ""

    @property
    def shown(self) -> str:
        """Return the value with its unit, as people read it."""
        if self.unit == "share":
            return self.text
        return {"W": f"{self.text} W", "Hz": f"{self.text} MHz"}.get(self.unit, self.text)

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"text": self.text, "value": self.value, "unit": self.unit}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Value:
        """Take what `to_json` gave."""
        value = data["value"]
        assert isinstance(value, int | float | str)
        return cls(str(data["text"]), value, data.get("unit", ""))  # type: ignore[arg-type]


def read_caps(text: str, where: str = "--cap") -> tuple[Value, ...]:
    """Read caps: `170`, `170W`, `60%`, `100:260:10`, `60%:100%:10%`, and lists of them. Raises ConfigError."""
    return _read_measured(text, _POWER, where, "150, 100:260:10 (W) or 60%:100%:10%")


def read_clocks(text: str, where: str = "--clock") -> tuple[Value, ...]:
    """Read clocks in MHz. Raises ConfigError."""
    return _read_measured(text, _FREQUENCY, where, "1200 or 900:1980:120 (MHz)")


def read_counts(text: str, where: str = "--gpus") -> tuple[Value, ...]:
    """Read whole numbers of at least one. Raises ConfigError."""
    found = []
    for part in _split_parts(text, where):
        numbers, suffix = _read_numbers(part, where)
        for number in numbers or [Decimal(0)]:
            if suffix or number < 1 or number != number.to_integral_value():
                raise ConfigError(f"{part!r} is no number of GPUs", where=where, next="write it as 1,2,4,8 or 1:8:1")
            found.append(Value(_format_decimal(number), int(number)))
    return _drop_duplicates(found, where)


def read_free_values(text: str, where: str) -> tuple[Value, ...]:
    """Read values of any kind: a list, or a range of numbers. Raises ConfigError."""
    found = []
    for part in _split_parts(text, where):
        numbers, suffix = _read_numbers(part, where) if _RANGE.fullmatch(part) else ([], "")
        found += [_make_free_value(f"{_format_decimal(n)}{suffix}") for n in numbers] or [_make_free_value(part)]
    return _drop_duplicates(found, where)


VALUE_READERS: Mapping[str, Callable[[str, str], tuple[Value, ...]]] = {
    "cap": read_caps,
    "cpu_cap": read_caps,
    "clock": read_clocks,
    "gpus": read_counts,
}


def read_values(name: str, text: str, where: str) -> tuple[Value, ...]:
    """Read the values of a knob by its name. Raises ConfigError."""
    return VALUE_READERS.get(name, read_free_values)(text, where)


def read_value_list(name: str, items: Sequence[float | str], where: str) -> tuple[Value, ...]:
    """Read the values of a knob from a list. Raises ConfigError.

    A text in it is one value as it stands, commas and all; only of joulelab's own knobs may it be a range.
    """
    texts = [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
    if name in VALUE_READERS and texts:
        return VALUE_READERS[name](",".join(texts), where)
    if not texts or not all(texts):
        raise ConfigError("a value is empty" if texts else "there is no value", where=where, next="give at least one")
    return _drop_duplicates([_make_free_value(text) for text in texts], where)


def read_cooling(value: float | str) -> tuple[str, float]:
    """Read what is waited for before a slot: `45C` gives `cool_c` in degC, `60s` gives `cool_s`. Raises ConfigError."""
    degrees = _DEGREES.fullmatch(value) if isinstance(value, str) else None
    return ("cool_c", float(degrees[1])) if degrees else ("cool_s", read_seconds(value))


def _read_measured(text: str, units: Mapping[str, tuple[Unit, Decimal]], where: str, example: str) -> tuple[Value, ...]:
    found: list[Value] = []
    for part in _split_parts(text, where):
        numbers, suffix = _read_numbers(part, where)
        if suffix not in units or not numbers:
            raise ConfigError(f"{part!r} cannot be read", where=where, next=f"write it as {example}")
        unit, factor = units[suffix]
        for number in numbers:
            if number <= 0:
                raise ConfigError(
                    f"{_format_decimal(number)} is not above 0", where=where, next=f"write it as {example}"
                )
            shown = f"{_format_decimal(number)}%" if unit == "share" else _format_decimal(number)
            found.append(Value(shown, float(number * factor), unit))
    if len({value.unit for value in found}) > 1:
        raise ConfigError("watts and percent are mixed", where=where, why=text, next=f"write it as {example}")
    return _drop_duplicates(found, where)


def _split_parts(text: str, where: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError("a value is empty", where=where, why=text or "nothing is given")
    return parts


def _read_numbers(part: str, where: str) -> tuple[list[Decimal], str]:
    """Return the numbers of a range or a single one, and their suffix; no numbers where it is neither."""
    whole = _RANGE.fullmatch(part)
    if whole is None:
        single = _SINGLE.fullmatch(part)
        return ([Decimal(single[1])], single[2]) if single else ([], "")
    suffixes = {s for s in whole.group(2, 4, 6) if s}
    if len(suffixes) > 1:
        raise ConfigError(f"{part!r} has several units", where=where)
    first, last, step = (Decimal(n) for n in whole.group(1, 3, 5))
    if step == 0 or (last - first) / step < 0:
        why = "the step is 0" if step == 0 else "its step leads away from its end"
        raise ConfigError(f"{part!r} is no range", where=where, why=why, next="write FIRST:LAST:STEP")
    count = int((last - first) / step) + 1
    if count > MAX_VALUES:
        raise ConfigError(f"{part!r} has {count} values", where=where, why=f"at most {MAX_VALUES} are taken")
    return [first + k * step for k in range(count)], suffixes.pop() if suffixes else ""


def _make_free_value(text: str) -> Value:
    """Keep a text as it is; it is a number only if nothing is lost by taking it for one."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text:
            return Value(text, number)
    return Value(text, text)


def _format_decimal(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _drop_duplicates(values: Sequence[Value], where: str) -> tuple[Value, ...]:
    found = {value.text: value for value in values}
    if len(found) > MAX_VALUES:
        raise ConfigError(f"{len(found)} values", where=where, why=f"at most {MAX_VALUES} are taken")
    return tuple(found.values())
