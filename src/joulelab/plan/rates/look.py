"""Look at a rate: from when to when it is known, its lowest and highest values, its gaps and its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.constant import Constant
from joulelab.plan.rates.steps import Steps
from joulelab.plan.rates.tariff import Tariff, described

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.plan.rates.rate import Label, Rate


@dataclass(frozen=True, slots=True)
class Look:
    """Hold what can be said of a rate; values in the label's unit, times in s since 1970, None where there are none.

    `mean` is over time, gaps left out. `negative_s` is how long it is below 0. `rules` are name, price and hours.
    """

    form: str
    label: Label
    low: float | None = None
    mean: float | None = None
    high: float | None = None
    since_s: float | None = None
    until_s: float | None = None
    count: int = 0
    gaps: tuple[tuple[float, float], ...] = ()
    negative_s: float = 0.0
    rules: tuple[tuple[str, float, str], ...] = ()
    demand: dict[str, Any] | None = None
    fee: dict[str, Any] | None = None

    @property
    def unknown_s(self) -> float:
        """Return how long it is not known, between its beginning and its end, in s."""
        return sum(until - since for since, until in self.gaps)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        gaps = [{"since_utc_s": a, "until_utc_s": b} for a, b in self.gaps]
        rules = [{"name": name, "price": price, "hours": hours} for name, price, hours in self.rules]
        times = {"since_utc_s": plain.pop("since_s"), "until_utc_s": plain.pop("until_s")}
        return plain | times | {"unit": self.label.unit, "label": self.label.to_json(), "gaps": gaps, "rules": rules}


def look_at(rate: Rate) -> Look:
    """Return what can be said of a rate."""
    if isinstance(rate, Constant):
        return Look("constant", rate.label, rate.value, rate.value, rate.value)
    if isinstance(rate, Steps):
        return _series(rate)
    if isinstance(rate, Tariff):
        return _tariff(rate)
    return Look("service", rate.label)


def _series(steps: Steps) -> Look:
    lengths = np.diff(np.append(steps.start_s, steps.end_s))
    known = ~np.isnan(steps.values)
    values, weights = steps.values[known], lengths[known]
    some = bool(values.size)
    return Look(
        "series", steps.label,
        float(values.min()) if some else None,
        float(np.average(values, weights=weights)) if some else None,
        float(values.max()) if some else None,
        steps.since_s, steps.end_s, int(values.size), tuple(steps.gaps()),
        float(weights[values < 0].sum()),
    )  # fmt: skip


def _tariff(tariff: Tariff) -> Look:
    prices = [rule.price for rule in tariff.rules] + ([] if tariff.base is None else [tariff.base])
    rules = [(rule.name, rule.price, described(rule.hours())) for rule in tariff.rules]
    if tariff.base is not None:
        rules.append(("otherwise" if rules else "flat", tariff.base, "all other hours" if rules else "at all times"))
    return Look(
        "tariff", tariff.label, min(prices), None, max(prices),
        tariff.since_s if np.isfinite(tariff.since_s) else None,
        tariff.until_s if np.isfinite(tariff.until_s) else None,
        rules=tuple(rules),
        demand=tariff.demand.to_json() if tariff.demand else None,
        fee=tariff.fee.to_json() if tariff.fee else None,
    )  # fmt: skip


def services_here(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the services, and for each why it cannot be asked from here: no key; empty where it can."""
    from joulelab.plan.rates.services import SERVICES
    from joulelab.plan.rates.services.access import access_of

    known = [module.ABOUT for module in SERVICES.values()]
    found = []
    for one in known:
        problem = ""
        try:
            access_of(one, environ, known)
        except ConfigError as error:
            problem = str(error)
        facts = {"service": one.word, "title": one.title, "kind": one.kind, "unit": one.unit, "covers": one.covers}
        found.append(facts | {"keys": list(one.secrets.values()), "problem": problem})
    return found
