"""Fetch prices and carbon intensities from services, and keep what came.

    fetch("em", "DE", since_s, until_s)             actual values of a past time
    fetch("em", "DE", forecast=True)                the newest forecast

A service is a module with `ABOUT` and `ask(door, wanted)`; nothing but the table below knows all of them. None of
them was tried against the real service: each says what it was written from.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed
from joulelab.core.text import suggest_name
from joulelab.plan.rates.kept import FOLDER, ZONE, Origin, cut, keep
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.services import electricity_maps
from joulelab.plan.rates.services.access import REMOVED, REMOVED_NEXT, access_of
from joulelab.plan.rates.services.asking import DAY_S, Door, Told, Wanted, pages
from joulelab.plan.rates.services.assembling import estimated_s, steps_of
from joulelab.plan.rates.steps import Steps, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from joulelab.plan.rates.services.asking import About

SERVICES: Mapping[str, ModuleType] = {one.ABOUT.word: one for one in (electricity_maps,)}
AHEAD_S = 3 * DAY_S  # of a forecast, where nothing is said
Covers = Literal["direct", "lifecycle", ""]
LONGEST_S = 5 * 366 * DAY_S  # a typing error of a year must not become thousands of requests


def about(service: str) -> About:
    """Return what a service is. Raises ConfigError where there is none of that name."""
    if service in REMOVED:
        raise ConfigError(f"the service {service!r} ({REMOVED[service]}) was removed", next=REMOVED_NEXT)
    if service not in SERVICES:
        raise ConfigError(f"there is no service {service!r}", next=suggest_name(service, list(SERVICES)))
    found: About = SERVICES[service].ABOUT
    return found


def label_of(service: str, zone: str = "", covers: str = "") -> Label:
    """Return the label that a service's series of a zone will have, without asking it. Raises ConfigError."""
    one = about(service)
    taken = _covers(one, covers)
    source = f"{one.title} ({one.address})"
    return Label(
        one.kind, one.unit, f"{service}:{zone}", zone=zone, covers=taken, source=source, licence=one.licence,
        resolution_s=one.resolution_s, notes=one.notes,
    )  # fmt: skip


def series_of(service: str, zone: str = "", covers: str = "") -> str:
    """Return the name under which a service's series of a zone is kept. Raises ConfigError for what is no zone."""
    one = about(service)
    if not zone or not ZONE.fullmatch(zone):
        raise ConfigError(f"{zone!r} is no zone" if zone else "no zone is given", where=one.title, next=one.advice)
    taken = _covers(one, covers)
    return f"{service}-{zone}" + (f"-{taken}" if taken != one.covers else "")


def fetch(
    service: str,
    zone: str = "",
    since_s: float | None = None,
    until_s: float | None = None,
    *,
    forecast: bool = False,
    covers: str = "",
    folder: Path = FOLDER,
    environ: Mapping[str, str] | None = None,
    now: Callable[[], float] = lambda: read_utc_ns() / NS,
    sleep: Callable[[float], None] = time.sleep,
    warn: Callable[[str], None] = lambda _: None,
) -> Steps:
    """Ask a service for a zone, keep what it tells, and return it between the times (s since 1970) that are asked for.

    Without times: the last day, or the next three days as far as they are forecast. What the service does not tell is
    a gap or lies beyond the ends; `warn` gets such words, and those about keys. `covers` chooses direct or lifecycle
    where the service offers both. Raises ConfigError, Denied, ReadFailed; what came before a failure is kept.
    """
    one = about(service)
    series = series_of(service, zone, covers)
    wanted = _wanted(one, zone, (since_s, until_s), forecast, _covers(one, covers), now())
    access = access_of(one, os.environ if environ is None else environ, [each.ABOUT for each in SERVICES.values()])
    for word in access.warnings:
        warn(word)
    with Door(one, access.address, access.secrets, now=now, sleep=sleep) as door:
        told, failure = _ask_all(door, wanted, one.page_s)
    if failure is not None and all(value.value is None for value in told.values):
        raise failure
    steps = steps_of(told.values, _told_label(label_of(service, zone, covers), told, access.address), wanted)
    asked = {"zone": wanted.zone, "since_utc_s": wanted.since_s, "until_utc_s": wanted.until_s}
    kept = keep(steps, Origin(service, series, now(), asked, estimated_s(told.values)), folder)
    if failure is not None:
        raise _but_kept(failure, kept.name)
    steps = replace(steps, label=replace(steps.label, name=f"kept:{kept.name}"))
    return _asked_part(steps, wanted, one, warn)


def _told_label(label: Label, told: Told, address: str) -> Label:
    """Return a service's label with what came: when it was issued, and who really answered."""
    source = f"{label.source.partition(' (')[0]} ({address})"
    return replace(label, source=source, issued_utc_s=told.issued_s)


def _ask_all(door: Door, wanted: Wanted, page_s: float) -> tuple[Told, JoulelabError | None]:
    """Return what all pages told; where one fails, what came before it and the failure."""
    ask = SERVICES[door.about.word].ask
    if wanted.forecast:
        return ask(door, wanted), None
    whole = Told([])
    step_s = door.about.resolution_s
    known_s = math.ceil(door.now() / step_s) * step_s  # nobody is asked for what nobody knows
    for begin, end in pages(wanted.since_s, min(wanted.until_s, known_s), page_s):
        try:
            told = ask(door, replace(wanted, since_s=begin, until_s=end))
        except JoulelabError as error:
            return whole, error
        whole = Told([*whole.values, *told.values])
    return whole, None


def _wanted(
    one: About, zone: str, times: tuple[float | None, float | None], forecast: bool, covers: Covers, now_s: float
) -> Wanted:
    """Return what to ask for, on the service's grid of time. Raises ConfigError."""
    since_s, until_s = times
    if until_s is None:
        until_s = (since_s if since_s is not None else now_s) + AHEAD_S if forecast else now_s
    if since_s is None:
        since_s = now_s if forecast else min(until_s, now_s) - DAY_S
    if not math.isfinite(since_s) or not math.isfinite(until_s) or not 0 <= since_s < until_s:
        raise ConfigError(f"there is no time between {shown(since_s)} and {shown(until_s)}", next="give two times")
    if until_s - since_s > LONGEST_S:
        raise ConfigError(f"{(until_s - since_s) / DAY_S:.0f} days are too many to ask for", next="ask in parts")
    if forecast and until_s <= now_s:
        what = f"{one.title} gives no forecast of the past ({shown(until_s)})"
        raise ConfigError(what, next="leave --forecast out for actual values; kept forecasts: joulelab plan rates list")
    if not forecast and since_s >= now_s:
        raise ConfigError(f"nobody knows actual values of {shown(since_s)} yet", next="add --forecast")
    step_s = one.resolution_s
    since_s, until_s = math.floor(since_s / step_s) * step_s, math.ceil(until_s / step_s) * step_s
    return Wanted(zone, since_s, until_s, forecast, covers)


def _covers(one: About, covers: str) -> Covers:
    if not covers:
        return one.covers
    for word in one.choices or (one.covers,):
        if word == covers:
            return word  # type: ignore[return-value]
    offered = " or ".join(one.choices or (one.covers,)) or "nothing of that kind"
    raise ConfigError(f"{one.title} does not tell {covers} emissions", next=f"it tells {offered}")


def _asked_part(steps: Steps, wanted: Wanted, one: About, warn: Callable[[str], None]) -> Steps:
    """Return the part that was asked for, and say what of it is not there. Raises ReadFailed where nothing is."""
    if steps.end_s <= wanted.since_s or steps.since_s >= wanted.until_s:
        told = f"it tells {shown(steps.since_s)} to {shown(steps.end_s)}"
        raise ReadFailed("it tells nothing of the time that is asked for", where=one.title, why=told)
    found = cut(steps, wanted.since_s, wanted.until_s)
    if found.since_s > wanted.since_s:
        warn(f"{one.title} tells nothing before {shown(found.since_s)}")
    if found.end_s < wanted.until_s:
        warn(f"{one.title} tells nothing after {shown(found.end_s)}")
    for since, until in found.gaps():
        warn(f"{one.title} has a gap: {shown(since)} to {shown(until)}")
    return found


def _but_kept(failure: JoulelabError, name: str) -> JoulelabError:
    """Return a failure that says what came before it."""
    then = f"what came before it is kept as {name}; ask for the rest later"
    return type(failure)(failure.what, where=failure.where, why=failure.why, next=then)
