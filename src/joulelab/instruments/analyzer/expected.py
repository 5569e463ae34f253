"""Tell what an analyzer of a given model would deliver, without one: its streams as it would set itself up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.instruments.analyzer.accuracy import MODELS, Ranges, allowed
from joulelab.instruments.analyzer.answers import Element, Identity
from joulelab.instruments.analyzer.config import CONFIG, parse
from joulelab.instruments.analyzer.setup import State
from joulelab.instruments.analyzer.streams import Stated, build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.spec import Stream

VOLTS, HERTZ, FACTOR = 230.0, 50.0, 0.98
_ROOM = 1.2  # a range that is chosen by itself takes so much more than the largest load


def streams_of(
    config: Mapping[str, Any], model: str, *, idle_w: float, most_w: float, update_s: float | None = None
) -> list[Stream]:
    """Return the streams of an analyzer that is opened while `idle_w` flow, on ranges for `most_w`.

    `config` is its entry; ranges that it does not name are the smallest that fit. Raises ConfigError.
    """
    options = parse({"resource": "TCPIP::twin::INSTR", **config}, CONFIG)
    if model not in MODELS:
        raise ConfigError(
            f"there is no analyzer {model!r}", where=options.where, next=suggest_name(model, list(MODELS))
        )
    known, crest = MODELS[model], options.wishes.crest or 3
    elements = known.elements
    scale = options.wishes.ct_ratio or 1.0
    volts, amperes = allowed(known, crest)
    share = 1 / len(elements)
    chosen_v = _range(options.wishes.volts, volts, VOLTS * _ROOM)
    chosen_a = _range(options.wishes.amperes, amperes, most_w * share / VOLTS / FACTOR / scale * _ROOM)
    state = State(
        identity=Identity("YOKOGAWA", model, "twin", ""),
        options="",
        model=known,
        elements=elements,
        ranges=dict.fromkeys(elements, Ranges(chosen_v, chosen_a, scale)),
        auto="auto" in (options.wishes.volts, options.wishes.amperes),
        crest=crest,
        dc=False,
        line_filter=False,
        update_s=update_s or options.wishes.rate_s or 0.1,
        integration="STAR" if options.wishes.integrate else "RES",
    )
    apparent = idle_w / FACTOR
    shown = Element(VOLTS, apparent / VOLTS, idle_w, apparent, FACTOR, HERTZ, 0.0)
    return build(options, state, Stated.of(options, state, [shown]))


def _range(wanted: float | str, there: tuple[float, ...], needed: float) -> float:
    if not isinstance(wanted, str):
        return wanted
    return next((one for one in sorted(there) if one >= needed), max(there))
