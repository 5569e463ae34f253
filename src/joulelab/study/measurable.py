"""Find out before a study what can be measured here: every meter that its runs will read is opened once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.scope import find_family
from joulelab.recorder.plan import Plan, open_meter
from joulelab.run.run_options import read_offers
from joulelab.study.slot_options import make_run_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.study.folder import Settings
    from joulelab.study.refusals import Refusals


def check_meters(settings: Settings, environ: Mapping[str, str], scope: str | None, refusals: Refusals) -> list[str]:
    """Open what a run would read; return what is to be warned of. Raises ConfigError for a wrong configuration.

    A meter that was asked for and cannot be read, and a scope that none covers, are refused.
    """
    options, warnings = make_run_options(settings, environ, Path())
    wanted = {str(entry["name"]) for entry in options.configured} | set(settings.meters)
    also, meters = list(options.also), None if options.meters is None else list(options.meters)
    plan = Plan(Path(), "", os.getpid(), meters=meters, also=also, offers=read_offers(environ))
    scopes: set[str] = set()
    missing: list[str] = []
    for one in plan.all_meters():
        try:
            with contextlib.closing(open_meter(plan, one)) as meter:
                scopes |= _scopes(meter.streams())
        except JoulelabError as error:
            if one.name in wanted or one.meter in wanted:
                what, then = f"the meter {one.name} cannot be read", f"joulelab doctor {one.name}"
                told = ConfigError(what, where="study", why=str(error), next=then)
                refusals.add(told, ("meters",) if settings.meters else ("config",) if settings.config else ())
            missing.append(f"{one.name}: {error.what}")
    if scope is not None and scope not in scopes:
        there = f"there are {', '.join(sorted(scopes))}" if scopes else "; ".join(missing) or None
        told = ConfigError(f"no meter here covers {scope!r}", where="scope", why=there, next="joulelab meters")
        refusals.add(told, ("scope",))
    if not scopes:
        warnings.append("no power meter can be read here: there will be times, but no energies; joulelab doctor")
    return warnings


def _scopes(streams: Sequence[Any]) -> set[str]:
    """Return the scopes, families and sums that tell power or energy."""
    found: set[str] = set()
    for stream in streams:
        if any(spec.kind == "power" or (spec.kind == "counter" and spec.unit == "J") for spec in stream.channels):
            found |= {stream.scope, find_family(stream.scope), "measured", *([stream.sums] if stream.sums else [])}
    return found
