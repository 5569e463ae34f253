"""Cool down before a slot: for a time, or until the GPUs are no warmer than asked, within a limit."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from joulelab import instruments as meters
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError
from joulelab.core.text import finite_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from joulelab.core.spec import Meter, Stream
    from joulelab.study.folder import Settings

THERMOMETERS = ("nvml", "amdsmi")
TEMPERATURE = "temperature_c"
COOLING_POLL_S = 1.0


class Thermometer:
    """Read how warm the warmest GPU is, in degC."""

    def __init__(self, opened: list[tuple[Meter, Stream, int]]) -> None:
        self._opened = opened

    @property
    def scopes(self) -> list[str]:
        """Return the GPUs that tell their temperature."""
        return [stream.scope for _, stream, _ in self._opened]

    def read(self) -> float:
        """Return the highest temperature, NaN where none can be read now."""
        found = []
        for meter, stream, column in self._opened:
            with contextlib.suppress(JoulelabError):
                found.append(float(meter.read(stream)[column]))
        return max((t for t in found if math.isfinite(t)), default=math.nan)


@contextlib.contextmanager
def open_thermometer(scopes: Collection[str] | None = None) -> Iterator[Thermometer]:
    """Open what tells the temperature of GPUs (None: of all)."""
    with contextlib.ExitStack() as stack:
        opened = []
        for name in THERMOMETERS:
            try:
                meter = meters.open_meter(name, {})
            except JoulelabError:
                continue
            stack.callback(meter.close)
            for stream in meter.streams():
                names = [spec.name for spec in stream.channels]
                if TEMPERATURE in names and (scopes is None or stream.scope in scopes):
                    opened.append((meter, stream, names.index(TEMPERATURE)))
        yield Thermometer(opened)


def cool_down(
    settings: Settings,
    scopes: Collection[str],
    pause: Callable[[float], bool],
    *,
    now: Callable[[], int] = monotonic_ns,
    opened: Callable[[Collection[str]], contextlib.AbstractContextManager[Thermometer]] = open_thermometer,
) -> dict[str, Any]:
    """Cool down as the settings say, and return what happened: how long, from which temperature to which, and why.

    `pause` waits so many s and returns False where the slot shall end.
    """
    began = now()
    happened: dict[str, Any] = {"reason": "none asked for"}
    if settings.cool_s > 0:
        whole = pause(settings.cool_s)
        happened = {"asked_s": settings.cool_s, "reason": "time" if whole else "interrupted"}
    elif settings.cool_c is not None:
        with opened(scopes) as gauge:
            happened = _wait(gauge, settings.cool_c, began + round(settings.cool_limit_s * NS), pause, now)
        happened |= {"asked_c": settings.cool_c, "limit_s": settings.cool_limit_s}
    return happened | {"took_s": (now() - began) / NS}


def _wait(
    gauge: Thermometer, wanted_c: float, until_ns: int, pause: Callable[[float], bool], now: Callable[[], int]
) -> dict[str, Any]:
    if not gauge.scopes:
        return {"reason": "no temperature", "from_c": None, "to_c": None}
    first = latest = gauge.read()
    reason = "temperature"
    while not latest <= wanted_c:  # also true for NaN: what cannot be read is not cool
        left_s = (until_ns - now()) / NS
        if left_s <= 0:
            reason = "limit"
            break
        if not pause(min(COOLING_POLL_S, left_s)):
            reason = "interrupted"
            break
        latest = gauge.read()
    return {"reason": reason, "from_c": finite_or_none(first), "to_c": finite_or_none(latest)}
