"""Read the units that carbon intensities and prices come in, and turn them into g/kWh and CURRENCY/kWh."""

from __future__ import annotations

import re
from dataclasses import dataclass

from joulelab.core.errors import ConfigError

G_PER_LB = 453.59237
MASSES_G = {"g": 1.0, "kg": 1e3, "t": 1e6, "lb": G_PER_LB, "lbs": G_PER_LB, "mg": 1e-3}
ENERGIES_KWH = {"kwh": 1.0, "mwh": 1e3, "gwh": 1e6, "wh": 1e-3, "mj": 1 / 3.6, "gj": 1e3 / 3.6}
# What a hundredth is called, and of what: `ct` alone is of the euro.
CENTS = {"ct": "EUR", "cent": "EUR", "eurct": "EUR", "eurocent": "EUR", "p": "GBP", "pence": "GBP", "usct": "USD"}
SIGNS = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}
CARBON = "g/kWh"
VALID = "g/kWh, kg/MWh, lb/MWh, EUR/kWh, EUR/MWh, ct/kWh"


@dataclass(frozen=True, slots=True)
class Unit:
    """Say by what to multiply figures in a unit, and which unit they are in then: g/kWh or CURRENCY/kWh."""

    factor: float
    unit: str

    @property
    def money(self) -> bool:
        """Return whether it is a price."""
        return self.unit != CARBON


def unit_of(text: str) -> Unit:
    """Read a unit: `g/kWh`, `lb/MWh`, `EUR/MWh`, `ct/kWh`; without `/ENERGY` it is per kWh. Raises ConfigError."""
    above, slash, below = text.strip().partition("/")
    per = ENERGIES_KWH.get(below.strip().lower()) if slash else 1.0
    name = re.sub(r"\s*_?co2(e|eq|-eq)?$", "", above.strip().replace("₂", "2"), flags=re.IGNORECASE)
    if per is None or not name:
        raise _unknown(text)
    mass = MASSES_G.get(name.lower())
    if mass is not None:
        return Unit(mass / per, CARBON)
    hundredth = CENTS.get(name.lower())
    if hundredth is not None:
        return Unit(0.01 / per, f"{hundredth}/kWh")
    currency = SIGNS.get(name, name)
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise _unknown(text)
    return Unit(1 / per, f"{currency}/kWh")


def _unknown(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no unit of a rate", next=f"write it as one of {VALID}")
