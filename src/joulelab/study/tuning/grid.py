"""Make the grid of caps and locked clocks that tuning chooses from, and the requests that set them on the GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.control.client import CapRequest
from joulelab.core.errors import ConfigError, Refused
from joulelab.study.knobs import Knob, Value, read_caps, read_clocks
from joulelab.study.tuning.search import Setting, choose_budget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapDevice, CapStatus

STEPS = 16  # about so many in the grid if none is given
ROUND_STEPS_W = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Hold the settings to choose from, as they were typed for each knob, and the GPUs that they are set on."""

    scopes: tuple[str, ...]
    values: Mapping[Setting, tuple[Value, ...]]

    @property
    def settings(self) -> list[Setting]:
        """Return the settings, the lowest first."""
        return sorted(self.values, key=lambda setting: setting.rank)

    @property
    def reference(self) -> Setting:
        """Return the setting that the others are compared with: the highest."""
        return self.settings[-1]

    @property
    def budget(self) -> int:
        """Return the usual number of trials."""
        return choose_budget(self.settings)

    @property
    def knobs(self) -> list[Knob]:
        """Return the knobs of a study whose cells are the settings, in the same order."""
        every = list(self.values.values())
        names = ["cap"] * (self.reference.cap_w is not None) + ["clock"] * (self.reference.clock_hz is not None)
        return [Knob(name, tuple(dict.fromkeys(values[n] for values in every))) for n, name in enumerate(names)]

    @property
    def labels(self) -> dict[Setting, str]:
        """Return each setting as people read it."""
        return {
            setting: ", ".join(
                f"{value.text} ({setting.cap_w:.0f} W)" if value.unit == "share" else value.label for value in values
            )
            for setting, values in self.values.items()
        }

    def make_requests(self, setting: Setting) -> list[CapRequest]:
        """Return the requests to the keeper."""
        return [
            CapRequest(scope, float(value.value), value.unit)  # type: ignore[arg-type]
            for value in self.values[setting]
            for scope in self.scopes
        ]

    def write_command(self, setting: Setting, command: str) -> str:
        """Return the command to type from now on."""
        words = [f"--clock {value.text}" if value.unit == "Hz" else value.text for value in self.values[setting]]
        return f"joulelab cap {' '.join(reversed(words))} -- {command}"


def make_grid(status: CapStatus, scopes: Sequence[str], cap: str | None, clock: str | None = None) -> Grid:
    """Return the settings that the texts name; without any, the range of caps up to the default in round steps.

    Raises ConfigError for a text that cannot be read, Refused for a value that a GPU does not allow.
    """
    knobs: list[dict[float, Value]] = []
    if cap is not None or clock is None:
        devices = _find_devices(status, scopes, "power")
        lowest, highest = max(d.lowest for d in devices), min(d.highest for d in devices)
        default = min(highest if d.default is None else min(d.default, d.highest) for d in devices)
        values = read_caps(cap) if cap is not None else _choose_usual_caps(lowest, default)
        knobs.append({_compute_watts(value, default): value for value in values})
        _check_range(knobs[-1], devices, "--cap", 1.0, "W")
    if clock is not None:
        knobs.append({float(value.value): value for value in read_clocks(clock)})
        _check_range(knobs[-1], _find_devices(status, scopes, "clocks"), "--clock", 1e6, "MHz")
    if math.prod(map(len, knobs)) < 2:
        example = "--clock" if cap is None else "--cap"
        raise ConfigError(
            "there is nothing to choose from",
            where=example,
            next=f"name at least two: {'900:1980:120' if cap is None else '100:260:10'}",
        )
    if clock is None:
        return Grid(tuple(scopes), {Setting(watts): (value,) for watts, value in knobs[0].items()})
    if cap is None:
        return Grid(tuple(scopes), {Setting(None, hz): (value,) for hz, value in knobs[0].items()})
    pairs = ((watts, hz) for watts in knobs[0] for hz in knobs[1])
    return Grid(tuple(scopes), {Setting(w, hz): (knobs[0][w], knobs[1][hz]) for w, hz in pairs})


def _find_devices(status: CapStatus, scopes: Sequence[str], kind: str) -> list[CapDevice]:
    found = [d for d in status.devices if d.scope in scopes and d.kind == kind]
    lacking = [scope for scope in scopes if scope not in {d.scope for d in found}]
    if lacking or not found:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        done = "capped" if kind == "power" else "locked to a clock"
        raise Refused(f"{', '.join(lacking) or 'nothing'} cannot be {done}", where="tune", why=why)
    return found


def _check_range(
    values: Mapping[float, Value], devices: Sequence[CapDevice], option: str, scale: float, unit: str
) -> None:
    lowest, highest = max(d.lowest for d in devices), min(d.highest for d in devices)
    for number, value in values.items():
        if not lowest - 0.5 * scale <= number <= highest + 0.5 * scale:
            text = f"{value.text} ({number:.0f} W)" if value.unit == "share" else value.label
            models = " + ".join(dict.fromkeys(d.model for d in devices))
            why = f"{models} takes {lowest / scale:.0f} to {highest / scale:.0f} {unit}"
            raise Refused(f"{text} is out of range", where=option, why=why)


def _compute_watts(value: Value, default: float) -> float:
    number = float(value.value)
    return round(number * default, 3) if value.unit == "share" else number


def _choose_usual_caps(lowest: float, highest: float) -> tuple[Value, ...]:
    """Return both ends and round values between them."""
    step = min(ROUND_STEPS_W, key=lambda w: abs(math.log(w * STEPS / max(highest - lowest, 1e-9))))
    inner = [k * step for k in range(math.ceil(lowest / step), math.floor(highest / step) + 1)]
    apart = [w for w in inner if lowest + step / 2 <= w <= highest - step / 2]
    return read_caps(",".join(f"{w:g}" for w in [lowest, *apart, highest]))


def describe_setting(setting: Setting) -> dict[str, Any]:
    """Return a setting as plain data, as events and JSON have it."""
    return {"cap": setting.cap_w} | ({} if setting.clock_hz is None else {"clock_hz": setting.clock_hz})
