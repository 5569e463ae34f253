"""Describe the streams of a BMC: the kind of each channel, how often it changes, and its accuracy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.ipmi.answers import XCC_MODULUS_J
from joulelab.instruments.ipmi.sensors import is_fan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.ipmi.answers import SensorRecord
    from joulelab.instruments.ipmi.settings import IpmiSettings, PowerSource

GAIN = 0.05
REFERENCE = "makers of BMCs rarely state it; 5 % taken, as benchmarks ask of node power"


class StreamFactory:
    """Make the streams of one BMC."""

    def __init__(self, config: Mapping[str, Any], settings: IpmiSettings, where: str, maker: int) -> None:
        self._config, self._settings = config, settings
        self._device, self._model = where, f"manufacturer {maker}"

    def make_power(self, name: str, source: PowerSource, step_w: float) -> Stream:
        """Return a stream of one power (W)."""
        place = wall.place({**self._config, "feeds": source.feeds}, source.feeds)
        channels = (self._make_spec(source.feeds, step_w),)
        return Stream(
            name, source.kind, period_s=self._settings.period_s, channels=channels, device=self._device,
            model=self._model, **place,
        )  # fmt: skip

    def make_energy(self, name: str, source: PowerSource) -> Stream:
        """Return a stream of XCC's energy counter (J)."""
        place = wall.place({**self._config, "feeds": source.feeds}, source.feeds)
        spec = Spec(
            "energy_j", "energy", "J", "counter", self._settings.update_s, modulus=XCC_MODULUS_J,
            accuracy=self._make_accuracy(source.feeds, 0.001), lag_s=wall.BMC_LAG_S,
        )  # fmt: skip
        period_s = self._settings.period_s
        return Stream(name, "xcc", period_s=period_s, channels=(spec,), device=self._device, model=self._model, **place)

    def make_supply(self, source: PowerSource, number: int, parts: int, sensor: SensorRecord) -> Stream:
        """Return the stream of one power supply, one of `parts` that are summed."""
        scope = f"{source.kind}:{number}"
        channels = (self._make_spec(source.feeds, sensor.step),)
        return Stream(
            scope, source.kind, scope, self._settings.period_s, channels, source.feeds, device=sensor.name,
            model=self._model, sums=source.feeds, parts=parts,
        )  # fmt: skip

    def make_cooling(self, sensors: Sequence[SensorRecord]) -> Stream:
        """Return the stream of temperatures and fans; the first temperature is `temperature_c`, the inlet's."""
        channels: dict[str, Spec] = {}
        for sensor in sensors:
            accuracy = Accuracy(quantum=sensor.step)
            if is_fan(sensor):
                name = f"fan{1 + sum(c.startswith('fan') for c in channels)}_speed"
                name, unit = (name, "1") if sensor.percent else (f"{name}_rpm", "rpm")
                channels[name] = Spec(name, "fan speed", unit, accuracy=accuracy)
                continue
            words = re.sub(r"[^a-z0-9]+", "_", sensor.name.lower()).strip("_")
            words = re.sub(r"_?temp(erature)?$", "", words) or "other"
            name = "temperature_c" if "temperature_c" not in channels else f"{words}_temperature_c"
            if name in channels:
                name = f"{words}_{len(channels)}_temperature_c"
            channels[name] = Spec(name, "temperature", "degC", accuracy=accuracy)
        device = ", ".join(sensor.name for sensor in sensors)
        period_s = self._settings.cooling_period_s
        return Stream("cooling", "cooling", "node", period_s, (*channels.values(),), device=device, model=self._model)

    def _make_spec(self, feeds: str, step_w: float) -> Spec:
        update_s, accuracy = self._settings.update_s, self._make_accuracy(feeds, step_w)
        return Spec("power_w", "power", "W", "power", update_s, update_s, accuracy=accuracy, lag_s=wall.BMC_LAG_S)

    def _make_accuracy(self, feeds: str, quantum: float) -> Accuracy:
        shared = f"{self._settings.label}:{feeds}"
        return wall.stated(self._config, Accuracy("assumed", GAIN, quantum=quantum, shared=shared, reference=REFERENCE))
