"""Knobs: their values as people type them, their placeholders in commands, and the cells that have them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

Unit = Literal["", "W", "share", "Hz"]
# Keys of a condition beside knobs.
WORKLOAD, NODE, PHASE = "workload", "node", "phase"
# Knobs that joulelab sets itself: they need not be in the command.
OWN_KNOBS = ("cap", "cpu_cap", "clock", "gpus")
KNOB_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KNOB_NAME_ADVICE = "letters, digits and _, no digit at its start"
MAX_VALUES = 10_000
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({NUMBER})([A-Za-z%]*):({NUMBER})([A-Za-z%]*):({NUMBER})([A-Za-z%]*)")
_SINGLE = re.compile(rf"({NUMBER})([A-Za-z%]*)")
_DEGREES = re.compile(r"\s*(\d+(?:\.\d*)?)\s*(?:°|deg)?C\s*")
# `${HOME}` is the shell's.
_BRACED = re.compile(r"(?<!\$)(?P<open>\{+)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<close>\}+)")
# By suffix: the unit, and the factor to SI.
_POWER: Mapping[str, tuple[Unit, Decimal]] = {
    "": ("W", Decimal(1)),
    "W": ("W", Decimal(1)),
    "%": ("share", Decimal("0.01")),
}
_FREQUENCY: Mapping[str, tuple[Unit, Decimal]] = {"": ("Hz", Decimal(10**6)), "MHz": ("Hz", Decimal(10**6))}


@dataclass(frozen=True, slots=True)
class Value:
    """Hold one value of a knob: its text in the command, the value itself (SI, share of 1), and its unit."""

    text: str
    value: float | int | str
    unit: Unit = ""

    @property
    def label(self) -> str:
        """Return the value with its unit, as people read it."""
        return {"W": f"{self.text} W", "Hz": f"{self.text} MHz"}.get(self.unit, self.text)

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"text": self.text, "value": self.value, "unit": self.unit}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Value:
        """Restore from `to_json`."""
        value = data["value"]
        assert isinstance(value, int | float | str)
        return cls(str(data["text"]), value, data.get("unit", ""))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Condition:
    """Select cells: by workloads, node types and values of knobs (by their texts). An empty part selects all.

    A cell without a named knob is not selected.
    """

    workloads: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    knobs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def is_met(self, workload: str, node: str, knobs: Mapping[str, Value]) -> bool:
        """Return whether a cell is selected."""
        if (self.workloads and workload not in self.workloads) or (self.nodes and node not in self.nodes):
            return False
        return all(name in knobs and knobs[name].text in texts for name, texts in self.knobs.items())


ALWAYS = Condition()


@dataclass(frozen=True, slots=True)
class Knob:
    """Hold a knob and its values; only cells that meet its condition have it."""

    name: str
    values: tuple[Value, ...]
    when: Condition = ALWAYS

    @classmethod
    def parse(cls, name: str, text: str, where: str | None = None) -> Knob:
        """Read the values of a knob as they are typed. Raises ConfigError."""
        if KNOB_NAME.fullmatch(name) is None:
            raise ConfigError(f"{name!r} cannot name a knob", where=where, next=KNOB_NAME_ADVICE)
        return cls(name, read_values(name, text, where or f"--set {name}"))


# Values


def read_caps(text: str, where: str = "--cap") -> tuple[Value, ...]:
    """Read caps: `170`, `170W`, `60%`, `100:260:10`, `60%:100%:10%`, and lists of them. Raises ConfigError."""
    return _read_measured(text, _POWER, where, "150, 100:260:10 (W) or 60%:100%:10%")


def read_clocks(text: str, where: str = "--clock") -> tuple[Value, ...]:
    """Read clocks in MHz. Raises ConfigError."""
    return _read_measured(text, _FREQUENCY, where, "1200 or 900:1980:120 (MHz)")


def read_counts(text: str, where: str = "--gpus") -> tuple[Value, ...]:
    """Read whole numbers of at least 1. Raises ConfigError."""
    found = []
    for part in _split_parts(text, where):
        numbers, suffix = _read_numbers(part, where)
        for number in numbers or [Decimal(0)]:
            if suffix or number < 1 or number != number.to_integral_value():
                raise ConfigError(f"{part!r} is not a number of GPUs", where=where, next="write it as 1,2,4,8 or 1:8:1")
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

    Each text is one value, even with commas; only texts of joulelab's own knobs may be ranges.
    """
    texts = [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
    if name in VALUE_READERS and texts:
        return VALUE_READERS[name](",".join(texts), where)
    if not texts or not all(texts):
        raise ConfigError("a value is empty" if texts else "there is no value", where=where, next="give at least one")
    return _drop_duplicates([_make_free_value(text) for text in texts], where)


def read_cooling(value: float | str) -> tuple[str, float]:
    """Read the pause before a slot: `45C` gives `cool_c` in degC, `60s` gives `cool_s`. Raises ConfigError."""
    degrees = _DEGREES.fullmatch(value) if isinstance(value, str) else None
    return ("cool_c", float(degrees[1])) if degrees else ("cool_s", read_seconds(value))


def find_reference(pairs: Mapping[str, str], knobs: Sequence[Knob]) -> dict[str, Any]:
    """Return the knob values that select the reference cells: `cap=260`. Raises ConfigError with the valid ones."""
    by_name = {knob.name: knob for knob in knobs}
    found: dict[str, Any] = {}
    for name, text in pairs.items():
        if name not in by_name:
            raise ConfigError(f"there is no knob {name!r}", where="--reference", why=f"knobs: {', '.join(by_name)}")
        wanted = read_values(name, text, "--reference")
        valid = by_name[name].values
        if len(wanted) != 1 or (wanted[0].value, wanted[0].unit) not in {(v.value, v.unit) for v in valid}:
            why = f"there are {', '.join(v.label for v in valid)}"
            raise ConfigError(f"no cell has {name} {text}", where="--reference", why=why)
        found[name] = wanted[0].value
    return found


def _read_measured(text: str, units: Mapping[str, tuple[Unit, Decimal]], where: str, example: str) -> tuple[Value, ...]:
    found: list[Value] = []
    advice = f"write it as {example}"
    for part in _split_parts(text, where):
        numbers, suffix = _read_numbers(part, where)
        if suffix not in units or not numbers:
            raise ConfigError(f"{part!r} cannot be read", where=where, next=advice)
        unit, factor = units[suffix]
        for number in numbers:
            if number <= 0:
                raise ConfigError(f"{_format_decimal(number)} is not above 0", where=where, next=advice)
            shown = f"{_format_decimal(number)}%" if unit == "share" else _format_decimal(number)
            found.append(Value(shown, float(number * factor), unit))
    if len({value.unit for value in found}) > 1:
        raise ConfigError("watts and percent are mixed", where=where, why=text, next=advice)
    return _drop_duplicates(found, where)


def _split_parts(text: str, where: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError("a value is empty", where=where, why=text or "nothing is given")
    return parts


def _read_numbers(part: str, where: str) -> tuple[list[Decimal], str]:
    """Return the numbers of a range or of a single number, and their suffix; no numbers for other texts."""
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
        raise ConfigError(f"{part!r} is not a range", where=where, why=why, next="write FIRST:LAST:STEP")
    count = int((last - first) / step) + 1
    if count > MAX_VALUES:
        raise ConfigError(f"{part!r} has {count} values", where=where, why=f"at most {MAX_VALUES} are allowed")
    return [first + k * step for k in range(count)], suffixes.pop() if suffixes else ""


def _make_free_value(text: str) -> Value:
    """Keep a text as it is; it is a number only if the number is written the same."""
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
        raise ConfigError(f"{len(found)} values", where=where, why=f"at most {MAX_VALUES} are allowed")
    return tuple(found.values())


# Placeholders: `{gpus}` is one, every other brace stays as it is


def list_placeholders(command: Sequence[str]) -> list[str]:
    """Return the names of the placeholders of a command, each once, in order."""
    found = (m for word in command for m in _BRACED.finditer(word) if _count_braces(m) == 1)
    return list(dict.fromkeys(m["name"] for m in found))


def fill_command(command: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """Return the command with values in place of its placeholders; `{{name}}` becomes `{name}`."""

    def fill_match(match: re.Match[str]) -> str:
        inner = _count_braces(match) - 1
        name = match["name"] if inner else texts[match["name"]]
        return f"{match['open'][inner + 1 :]}{'{' * inner}{name}{'}' * inner}{match['close'][inner + 1 :]}"

    return [_BRACED.sub(fill_match, word) for word in command]


def check_command(command: Sequence[str], knobs: Collection[str]) -> None:
    """Refuse a placeholder without a knob, and a knob without a placeholder. Raises ConfigError."""
    named = list_placeholders(command)
    for name in named:
        if name not in knobs:
            add = f"add --{name.replace('_', '-')}" if name in OWN_KNOBS else f"add --set {name}=VALUES"
            raise ConfigError(
                f"the placeholder {{{name}}} has no knob",
                where="command",
                why=f"knobs: {', '.join(knobs)}" if knobs else "there is no knob",
                next=f"{_suggest_near(name, knobs)}{add}, or write {{{{{name}}}}} for a literal {{{name}}}",
            )
    for name in knobs:
        if name not in named and name not in OWN_KNOBS:
            listed = ", ".join(f"{{{other}}}" for other in named)
            raise ConfigError(
                f"the knob {name} is not in the command",
                where=f"--set {name}",
                why=f"placeholders: {listed}" if named else "the command has no placeholder",
                next=f"{_suggest_near(name, named)}put {{{name}}} where its value belongs",
            )


def _count_braces(match: re.Match[str]) -> int:
    return min(len(match["open"]), len(match["close"]))


def _suggest_near(name: str, valid: Collection[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? or " if close else ""
