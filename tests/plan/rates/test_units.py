from __future__ import annotations

import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.units import unit_of


@pytest.mark.parametrize(
    ("text", "factor", "unit"),
    [
        ("g/kWh", 1.0, "g/kWh"),
        ("gCO2eq/kWh", 1.0, "g/kWh"),
        ("g CO₂/kWh", 1.0, "g/kWh"),
        ("kg/MWh", 1.0, "g/kWh"),
        ("t/MWh", 1000.0, "g/kWh"),
        ("kg/kWh", 1000.0, "g/kWh"),
        ("lb/MWh", 0.45359237, "g/kWh"),
        ("lbs CO2/MWh", 0.45359237, "g/kWh"),
        ("g/MJ", 3.6, "g/kWh"),
        ("EUR/MWh", 0.001, "EUR/kWh"),
        ("€/kWh", 1.0, "EUR/kWh"),
        ("ct/kWh", 0.01, "EUR/kWh"),
        ("p/kWh", 0.01, "GBP/kWh"),
        ("USD", 1.0, "USD/kWh"),
        ("CHF/MWh", 0.001, "CHF/kWh"),
    ],
)
def test_units_become_g_or_money_per_kwh(text: str, factor: float, unit: str) -> None:
    found = unit_of(text)
    assert found.factor == pytest.approx(factor, rel=1e-12)
    assert found.unit == unit
    assert found.money == (unit != "g/kWh")


@pytest.mark.parametrize("text", ["", "/kWh", "g/mile", "euros/kWh", "g/kWh/h", "12"])
def test_what_is_no_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no unit of a rate"):
        unit_of(text)
