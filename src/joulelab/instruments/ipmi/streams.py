"""Describe the streams of a BMC: what each channel is, how often it changes and how far it may be off."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.ipmi.parse import RPM, celsius

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.ipmi.parse import Sensor
    from joulelab.instruments.ipmi.settings import Settings, Source

_GAIN = 0.05
_WHY = "makers of BMCs rarely state it; 5 % taken, as benchmarks ask of node power"


class Streams:
    """Make the streams of one BMC."""

    def __init__(self, config: Mapping[str, Any], chosen: Settings, where: str, maker: int) -> None:
        self._config, self._set = config, chosen
        self._device, self._model = where, f"manufacturer {maker}"

    def power(self, name: str, table: str, source: Source, step_w: float) -> Stream:
        """Return a stream of one power (W)."""
        place = wall.place({**self._config, "feeds": source.feeds}, source.feeds)
        return Stream(
            name, table, period_s=self._set.period_s, channels=(self._watts(source.feeds, step_w),),
            device=self._device, model=self._model, **place,
        )  # fmt: skip

    def energy(self, name: str, source: Source, modulus_j: float) -> Stream:
        """Return a stream of one energy counter (J)."""
        place = wall.place({**self._config, "feeds": source.feeds}, source.feeds)
        spec = Spec(
            "energy_j", "energy", "J", "counter", self._set.update_s, modulus=modulus_j,
            accuracy=self._accuracy(source.feeds, 0.001), lag_s=wall.BMC_LAG_S,
        )  # fmt: skip
        return Stream(
            name, "xcc", period_s=self._set.period_s, channels=(spec,), device=self._device, model=self._model, **place
        )

    def supply(self, source: Source, number: int, parts: int, sensor: Sensor, *, output: bool) -> Stream:
        """Return the stream of one power supply, one of `parts` that make what they feed."""
        scope = f"psu.dc:{number}" if output else f"psu:{number}"
        return Stream(
            scope, "psu.dc" if output else "psu", scope, self._set.period_s,
            (self._watts(source.feeds, sensor.step),), source.feeds,
            device=sensor.name, model=self._model, sums=source.feeds, parts=parts,
        )  # fmt: skip

    def cooling(self, sensors: Sequence[Sensor]) -> Stream:
        """Return the stream of temperatures and fans."""
        channels: list[Spec] = []
        fan = 0
        for sensor in sensors:
            if sensor.percent or sensor.unit == RPM:
                fan += 1
                share = sensor.percent
                name = f"fan{fan}_speed" if share else f"fan{fan}_speed_rpm"
                spec = Spec(name, "fan speed", "1" if share else "rpm", accuracy=Accuracy(quantum=sensor.step))
            else:
                first = not any(c.unit == "degC" for c in channels)
                name = "temperature_c" if first else _free(f"{_word(sensor.name)}_temperature_c", channels)
                spec = Spec(name, "temperature", "degC", accuracy=Accuracy(quantum=sensor.step))
            channels.append(spec)
        return Stream(
            "cooling", "cooling", "node", self._set.cooling_period_s, tuple(channels),
            device=", ".join(s.name for s in sensors), model=self._model,
        )  # fmt: skip

    def state(self, sensor: Sensor, value: float) -> float:
        """Return a temperature in degrees Celsius, a fan in rpm or as a share."""
        if sensor.percent:
            return value / 100.0
        return value if sensor.unit == RPM else celsius(sensor, value)

    def _watts(self, feeds: str, step_w: float) -> Spec:
        update = self._set.update_s
        accuracy = self._accuracy(feeds, step_w)
        return Spec("power_w", "power", "W", "power", update, update, accuracy=accuracy, lag_s=wall.BMC_LAG_S)

    def _accuracy(self, feeds: str, quantum: float) -> Accuracy:
        shared = f"{self._set.label}:{feeds}"
        return wall.stated(self._config, Accuracy("assumed", _GAIN, quantum=quantum, shared=shared, reference=_WHY))


def _word(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return re.sub(r"_?temp(erature)?$", "", words) or "other"


def _free(name: str, channels: Sequence[Spec]) -> str:
    taken = {c.name for c in channels}
    free, k = name, 1
    while free in taken:
        k += 1
        free = f"{name.removesuffix('_temperature_c')}_{k}_temperature_c"
    return free
