"""Set a WT300E up for a run, and put back what was found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.analyzer import answers
from joulelab.instruments.analyzer.accuracy import MODELS, SUMMED, Model, Ranges, allowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.analyzer.kept import Kept

UPDATED = 1  # the bit of the event register that an update sets
OVER = {6: "voltage or current", 7: "voltage peak", 8: "current peak"}  # of element 1; three bits per element
_AUTO = (":INP:VOLT:AUTO", ":INP:CURR:AUTO")
_BATCH = 8  # questions in one message: instruments have small buffers


class Link(Protocol):
    """Describe what a cable to the instrument can do."""

    def write(self, text: str) -> None:
        """Send a message. Raises ReadFailed."""
        ...

    def query(self, text: str) -> str:
        """Send a message and return its answer. Raises ReadFailed."""
        ...

    def close(self) -> None:
        """End the link."""
        ...

    def abandon(self) -> None:
        """End a link that failed."""
        ...


@dataclass(frozen=True, slots=True)
class Wishes:
    """Hold what the configuration wants of the instrument; a range is a number (V, A), "keep" or "auto"."""

    where: str
    volts: float | str = "keep"
    amperes: float | str = "keep"
    crest: int | None = None
    rate_s: float | None = 0.1
    ct_ratio: float | None = None
    integrate: bool = True
    summed: bool = False
    poll: bool = False


@dataclass(slots=True)
class State:
    """Hold how the instrument is set now."""

    identity: answers.Identity
    options: str
    model: Model
    elements: tuple[int, ...]
    ranges: dict[int, Ranges]
    auto: bool
    crest: int
    dc: bool
    line_filter: bool
    update_s: float
    integration: str


class Dialogue:
    """Ask and set; remember what was found, so that it can be put back. Raises ReadFailed after the deadline."""

    def __init__(self, link: Link, where: str, kept: Kept, limit_s: float) -> None:
        self.link = link
        self.where = where
        self.kept = kept
        self._compound = True
        self._until_ns = monotonic_ns() + round(limit_s * NS)

    def ask(self, headers: Sequence[str]) -> list[str]:
        """Return the values of settings, without the headers that an instrument may put before them."""
        values: list[str] = []
        for k in range(0, len(headers), _BATCH):
            values += self._ask(headers[k : k + _BATCH])
        return values

    def _ask(self, headers: Sequence[str]) -> list[str]:
        self._check_time()
        if self._compound:
            parts = self.link.query(";".join(f"{header}?" for header in headers)).split(";")
            if len(parts) == len(headers):
                return [_data(part) for part in parts]
            self._compound = False  # one at a time, then
        return [_data(self.link.query(f"{header}?")) for header in headers]

    def ensure(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Set what is not so yet, and remember what it was."""
        values = self.ask([header for header, _ in wanted])
        changes = [(h, w, value) for (h, w), value in zip(wanted, values, strict=True) if not same(value, w)]
        for header, _, before in changes:
            self.kept.found.setdefault(header, before)
        if changes:
            self.kept.save()
        for k in range(0, len(changes), _BATCH):
            self._check_time()
            self.link.write(";".join(f"{header} {value}" for header, value, _ in changes[k : k + _BATCH]))

    def check_errors(self) -> None:
        """Refuse to go on where the instrument did not take a setting. Raises Unavailable."""
        code, said = answers.parse_error(self.link.query(":STAT:ERR?"), self.where)
        if code:
            advice = "stop the integration that runs" if code == 813 else "check its firmware and options"
            raise Unavailable("a setting is refused", where=self.where, why=f"error {code}: {said}", next=advice)

    def _check_time(self) -> None:
        if monotonic_ns() > self._until_ns:
            raise ReadFailed(
                "setting it up takes too long", where=self.where, why="slow answers", next="raise timeout_s"
            )


def _data(answer: str) -> str:
    """Return an answer's data: a header, where one stands before it, ends at a space."""
    text = answer.strip()
    return text.rpartition(" ")[2] if text.startswith(":") else text


def same(found: str, wanted: str) -> bool:
    """Tell whether a setting is as wanted: numbers by value, words by their shorter form."""
    left, right = found.upper().split(","), wanted.upper().split(",")
    return len(left) == len(right) and all(_same(a.strip(), b.strip()) for a, b in zip(left, right, strict=True))


def _same(found: str, wanted: str) -> bool:
    try:
        return math.isclose(float(found), float(wanted), rel_tol=1e-4, abs_tol=1e-9)
    except ValueError:
        known = {"ON": "1", "OFF": "0"}
        left, right = known.get(found, found), known.get(wanted, wanted)
        return bool(left and right) and (left.startswith(right) or right.startswith(left))


def set_up(talk: Dialogue, wishes: Wishes, rate_header: str) -> State:
    """Make the instrument ready to be read and return how it is set. Raises ReadFailed, Unavailable, ConfigError."""
    where = wishes.where
    identity = answers.parse_identity(talk.link.query("*IDN?"), tuple(MODELS), where)
    model = MODELS[identity.model.upper()]
    talk.kept.begin(identity.serial if identity.serial.strip("0 ") else where)
    options = talk.link.query("*OPT?").strip()[:60]
    talk.link.write("*CLS")
    talk.ensure([(":COMM:HEAD", "0")])
    talk.ensure([(":SYST:COMM:COMM", "WT300"), (":COMM:REM", "1")])
    integration = answers.parse_state(talk.link.query(":INTEG:STAT?"), where)
    if talk.kept.integrates:
        if integration == "STAR":  # started by a process that is gone, for nobody any more
            _end_integration(talk.link)
            integration = answers.parse_state(talk.link.query(":INTEG:STAT?"), where)
        talk.kept.integrates = talk.kept.started = False
    if integration != "STAR":  # while one runs, the instrument takes no such setting
        _set_measurement(talk, model, wishes, rate_header)
    state = _read_back(talk, identity, model, rate_header)
    _check_ranges(state, wishes)
    state.options, state.integration = options, integration
    talk.ensure([*_items(state, wishes), *((f":STAT:FILT{n}", "RISE") for n in range(7, 16)), (":STAT:FILT1", "FALL")])
    talk.check_errors()
    return state


def _check_ranges(state: State, wishes: Wishes) -> None:
    """Refuse to measure on other ranges than were wished for. Raises Unavailable."""
    for ranges in state.ranges.values():
        for wish, value, unit in ((wishes.volts, ranges.volts, "V"), (wishes.amperes, ranges.amperes, "A")):
            if isinstance(wish, float) and not math.isclose(wish, value, rel_tol=1e-4):
                what = f"the range is {value:g} {unit} and cannot be set to {wish:g} {unit}"
                why = "an integration runs"
                raise Unavailable(what, where=wishes.where, why=why, next='stop it, or set the range to "keep"')


def _items(state: State, wishes: Wishes) -> list[tuple[str, str]]:
    groups: list[int | str] = ["SIGM"] if wishes.summed else list(state.elements)
    asked = [f"{function},{group}" for group in groups for function in answers.ITEMS]
    if wishes.summed:  # there is no frequency of a sum
        asked[answers.ITEMS.index("FU")] = f"FU,{state.elements[0]}"
    asked.append("TIME,1")
    items = [(f":NUM:NORM:ITEM{n}", item) for n, item in enumerate(asked, 1)]
    return [(":NUM:FORM", "ASC"), (":NUM:NORM:NUM", str(len(items))), *items]


def _set_measurement(talk: Dialogue, model: Model, wishes: Wishes, rate_header: str) -> None:
    hold = rate_header.replace("RATE", "HOLD")
    wanted = [(":MEAS:AVER:STAT", "0"), (":MEAS:MHOL", "0"), (hold, "0")]
    if wishes.crest is not None:
        wanted.append((":INP:CFAC", str(wishes.crest)))
    talk.ensure(wanted)
    crest = _crest(talk.ask([":INP:CFAC"])[0])
    for name, unit, wish, fitting in zip(
        ("VOLT", "CURR"), "VA", (wishes.volts, wishes.amperes), allowed(model, crest), strict=True
    ):
        if wish == "keep":
            continue
        talk.ensure([(f":INP:{name}:AUTO", "1" if wish == "auto" else "0")])
        if isinstance(wish, float):
            if not any(math.isclose(wish, value) for value in fitting):
                listed = ", ".join(f"{value:g}" for value in fitting)
                what = f"there is no range of {wish:g} {unit}"
                raise ConfigError(what, where=wishes.where, why=f"crest factor {crest}", next=f"use one of {listed}")
            talk.ensure([(f":INP:{name}:RANG", f"{wish:g}")])
    if wishes.ct_ratio is not None:
        talk.ensure(
            [(":INP:SCAL:STAT", "1"), *((f":INP:SCAL:CT:ELEM{e}", f"{wishes.ct_ratio:g}") for e in model.elements)]
        )
    if wishes.rate_s is not None:
        talk.ensure([(rate_header, f"{wishes.rate_s:g}")])
    talk.check_errors()


def _read_back(talk: Dialogue, identity: answers.Identity, model: Model, rate_header: str) -> State:
    where = talk.where
    crest, mode, wiring, line_filter, auto_u, auto_i, rate, scaling = talk.ask(
        (":INP:CFAC", ":INP:MODE", ":INP:WIR", ":INP:FILT:LINE", *_AUTO, rate_header, ":INP:SCAL:STAT")
    )
    update_s = answers.parse_number(rate, where)
    if not 0.05 <= update_s <= 60:
        raise Unavailable(
            f"its update interval is {rate}", where=where, why="it is not in seconds", next="set a fixed rate"
        )
    elements = model.elements if len(model.elements) == 1 else SUMMED.get(wiring.upper(), model.elements)
    elements = tuple(e for e in elements if e in model.elements)
    ranges = read_ranges(talk, {e: _scale(talk, e) if same(scaling, "1") else 1.0 for e in elements})
    auto = same(auto_u, "1") or same(auto_i, "1")
    dc = mode.upper().startswith("DC")
    return State(
        identity, "", model, elements, ranges, auto, _crest(crest), dc, same(line_filter, "1"), update_s, "RES"
    )


def _scale(talk: Dialogue, element: int) -> float:
    ratios = talk.ask([f":INP:SCAL:{kind}:ELEM{element}" for kind in ("VT", "CT", "SFAC")])
    return math.prod(answers.parse_number(ratio, talk.where) for ratio in ratios)


def read_ranges(talk: Dialogue, scales: Mapping[int, float]) -> dict[int, Ranges]:
    """Return the ranges that are set, by element, with their scales."""
    volts, amperes = (range_of(text, talk.where) for text in talk.ask([":INP:VOLT:RANG", ":INP:CURR:RANG"]))
    return {element: Ranges(volts, amperes, scale) for element, scale in scales.items()}


def range_of(text: str, where: str) -> float:
    """Return a range in V or A, NaN for that of an external sensor. Raises ReadFailed."""
    if text.strip().upper().startswith("EXT"):
        return math.nan
    value = answers.parse_number(text, where)
    if not 0 < value < 1e4:
        raise ReadFailed("a range is no range", where=where, why=repr(text[:40]), next="it is tried again")
    return value


def _crest(text: str) -> int:
    return 3 if same(text, "3") else 6


def start_integration(talk: Dialogue, state: State) -> bool:
    """Start the integration if it stands at its beginning; return whether it was started."""
    if state.integration != "RES":
        return False
    talk.ensure([(":INTEG:MODE", "NORM"), (":INTEG:TIM", "0,0,0")])
    talk.kept.started = True
    talk.kept.save()
    talk.link.write(":INTEG:STAR")
    talk.check_errors()
    state.integration = "STAR"
    return True


def put_back(link: Link, kept: Kept) -> None:
    """Put back what was found, the last change first, and keep it no longer. Raises ReadFailed."""
    if kept.started:
        _end_integration(link)
    for header in reversed(kept.found):
        link.write(f"{header} {kept.found[header]}")
    kept.clear()


def _end_integration(link: Link) -> None:
    link.write(":INTEG:STOP")
    link.write(":INTEG:RES")
