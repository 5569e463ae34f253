"""Measure the power sensors of the kernel's hwmon tree: ACPI power meters (Grace, whole nodes), AMD sockets.

A sensor is read only if its driver or its label states what it measures: the labels of Grace, the sockets of
`amd_energy`, and an ACPI meter without a label that is alone, or with one that says "total", unless it names a battery
or a part in `measures/`, which is the node. All others are listed and not read. 0 W is a failed reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import Denied, MeterError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.names import names_node_power
from joulelab.instruments.settings import check_keys, seconds, text
from joulelab.instruments.sysfs import FileMeter, read_number, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter

SUMMARY = "Grace modules and CPUs, nodes with an ACPI power meter, AMD sockets (hwmon)"
PRIVILEGE = "none; AMD sockets: root"
TRIED = "trees of files; not on hardware"
ROOT = "/sys/class/hwmon"
CONFIG = {
    "period_s": "seconds between readings (0.1)",
    "slow_period_s": "seconds between readings of meters that average over half a second or more (1)",
    "root": f"the hwmon tree ({ROOT})",
}
ACPI, AMD = "power_meter", "amd_energy"
# Each socket of Grace has up to four meters: the module (with GPUs), the CPU side (with its memory), and two rails.
_GRACE = re.compile(r"(module|grace|cpu|sysio) power socket (\d+)", re.IGNORECASE)
_GRACE_SCOPES = {"module": "module:{}", "grace": "cpu:{}", "cpu": "cpu:{}/cores", "sysio": "cpu:{}/sysio"}
_SOCKET = re.compile(r"Esocket(\d+)")
_SENSOR = re.compile(r"(?:power\d+_(?:input|average)|energy\d+_input)")
# The links in `measures` that stand for the whole machine.
_WHOLE = ("LNXSYBUS", "LNXSYSTM")
_SLOW_S = 0.5
# Texts of firmware that has no label.
_NO_LABEL = re.compile(r"[\W\d_]*|n/?a|none|unknown", re.IGNORECASE)
_USUAL_S = 1.0  # an averaging interval that is not stated


@dataclass(frozen=True, slots=True)
class Sensor:
    """Describe one file of the tree: its averaging interval, its scope, and why it has none if that is None."""

    path: Path
    driver: str
    label: str = ""
    scope: str | None = None
    unit: str = "W"
    interval_s: float = _USUAL_S
    why: str = ""


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open the sensors whose scope is known. Raises Unavailable, Denied, ConfigError."""
    check_keys("hwmon", config, CONFIG)
    root = Path(text("hwmon", config, "root", ROOT) or ROOT)
    sensors = find_sensors(root)
    if not any(sensor.scope for sensor in sensors):
        found = "; ".join(f"{s.driver} {s.path.name}: {s.why}" for s in sensors)
        why = f"not read: {found}" if found else f"{root} has no sensor of power or energy"
        what, advice = "no sensor of power is known here", "other meters: joulelab meters"
        raise Unavailable(what, where="hwmon", why=why, next=advice, code="unavailable.no-sensor")
    periods_s = seconds("hwmon", config, "period_s", 0.1), seconds("hwmon", config, "slow_period_s", 1.0)
    return HwmonMeter(sensors, periods_s)


def find_sensors(root: Path) -> list[Sensor]:
    """List all sensors of power and energy, with a scope if their driver or label states it."""
    chips = sorted(root.glob("hwmon*"), key=lambda chip: (len(chip.name), chip.name))
    found = [sensor for chip in chips for sensor in _list_chip(chip)]
    wholes = [sensor for sensor in found if sensor.scope == "node.dc"]
    labels = [sensor.label for sensor in found if sensor.driver == ACPI and sensor.label]
    for k, sensor in enumerate(found):
        if sensor in wholes and len(wholes) > 1:
            found[k] = replace(sensor, scope=None, why=f"one of {len(wholes)} ACPI meters, and none has a label")
        elif sensor in wholes and labels and not sensor.label:
            found[k] = replace(sensor, scope=None, why=f"it has no label, and another ACPI meter has ({labels[0]})")
    return found


def _list_chip(chip: Path) -> list[Sensor]:
    driver = read_text(chip / "name") or "?"
    for folder in (chip, chip / "device"):
        names = [name for name in _list_names(folder) if _SENSOR.fullmatch(name)]
        if names and driver == ACPI:
            return [_describe_acpi(folder)]
        if names:
            return [_describe_other(folder / name, driver) for name in names]
    return []


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(file.name for file in folder.iterdir())
    except OSError:
        return []


def _describe_acpi(folder: Path) -> Sensor:
    label = read_text(folder / "power1_oem_info") or ""
    label = "" if _NO_LABEL.fullmatch(label) else label
    interval_s = (read_number(folder / "power1_average_interval") or 0) / 1000 or _USUAL_S
    measured = _list_names(folder / "measures")
    scope, why = "node.dc", ""
    if match := _GRACE.fullmatch(label):
        scope = _GRACE_SCOPES[match[1].lower()].format(int(match[2]))
    elif read_number(folder / "power1_is_battery"):
        why = "it measures a battery"
    elif label and not names_node_power(label):
        why = f"its label does not say that it is the whole node ({label})"
    elif not all(name.startswith(_WHOLE) for name in measured):
        why = f"it measures a part ({', '.join(measured)})"
    path = folder / "power1_average"
    if not path.exists():
        why = "it has no power1_average"
    return Sensor(path, ACPI, label, None if why else scope, interval_s=interval_s, why=why)


def _describe_other(path: Path, driver: str) -> Sensor:
    label = read_text(path.with_name(f"{path.name.partition('_')[0]}_label")) or ""
    match = _SOCKET.fullmatch(label) if driver == AMD else None
    if match:
        return Sensor(path, driver, label, f"cpu:{match[1]}", unit="J", interval_s=0.1)
    return Sensor(path, driver, label, why="it is not known here which part it measures")


class HwmonMeter(FileMeter):
    """Read each known sensor in W or J."""

    def __init__(self, sensors: Sequence[Sensor], periods_s: tuple[float, float]) -> None:
        """Open every known sensor. Raises Denied, Unavailable if none can be read."""
        super().__init__("hwmon")
        errors: list[MeterError] = []
        for sensor in sensors:
            name = f"{sensor.driver} {sensor.label or sensor.path.name}"
            if sensor.scope is None:
                self._missing.append(Missing(name, "it is not read", sensor.why))
            elif sensor.scope in self._readers:
                self._missing.append(Missing(name, "it is not read", f"another sensor shows {sensor.scope}"))
            else:
                try:
                    self._add_sensor(sensor, sensor.scope, periods_s)
                except MeterError as error:
                    errors.append(error)
                    self._missing.append(Missing.from_error(sensor.scope, error))
        # Of those that can be read: a part counts in its module even if the CPU between them cannot.
        self._streams = [replace(stream, parent=self._find_module(stream.scope)) for stream in self._streams]
        if not self._streams:
            self.close()
            what, why = "there are sensors of power, but none can be read", str(errors[0])
            advice = "ask an administrator for read access"
            if all(isinstance(error, Denied) for error in errors):
                raise Denied(what, where="hwmon", why=why, next=advice, code="denied.sensors")
            raise Unavailable(what, where="hwmon", why=why, next=advice, code="unavailable.sensors")

    def _find_module(self, scope: str) -> str | None:
        cpu, module = scope.partition("/")[0], scope.partition("/")[0].replace("cpu:", "module:")
        is_inside = module != cpu and module in self._readers and (scope == cpu or cpu not in self._readers)
        return module if is_inside else None

    def _add_sensor(self, sensor: Sensor, scope: str, periods_s: tuple[float, float]) -> None:
        file = self._open_file(sensor.path)

        def read_sensor() -> Sequence[float]:
            count = file.read_number()
            if count <= 0:  # hardware that runs draws power
                what, why = f"{scope} gives no power", f"{sensor.path} shows {count}"
                raise ReadFailed(what, where="hwmon", why=why, next="it is tried again", code="read-failed.zero")
            return (count / 1e6,)

        read_sensor()
        period_s = periods_s[0] if sensor.interval_s < _SLOW_S else periods_s[1]
        channel = describe_channel(sensor)
        stream = Stream(scope, channel.quantity, scope, period_s, (channel,), device=sensor.label)
        self._put(stream, read_sensor)


def describe_channel(sensor: Sensor) -> Spec:
    """Return the channel of a sensor: an average of power, or a counter."""
    interval_s = sensor.interval_s
    if sensor.unit == "J":
        why = "AMD publishes no accuracy; the driver amd_energy shows the counters of RAPL"
        accuracy = Accuracy("unknown", quantum=15e-6, shared="hwmon:amd", reference=why)
        return Spec("energy_j", "energy", "J", "counter", interval_s, accuracy=accuracy)
    gain, shared, why = 0.05, "hwmon:grace", "NVIDIA publishes no accuracy, 5 % is taken"
    if sensor.scope == "node.dc":
        why = "firmware states neither its accuracy nor whether it is before or after the supplies; 10 % is taken"
        gain, shared = 0.1, "hwmon:acpi"
    accuracy = Accuracy("assumed", gain, quantum=0.001, shared=shared, reference=f"ACPI power meter: {why}")
    return Spec("power_average_w", "power", "W", "power", interval_s, interval_s, accuracy=accuracy)
