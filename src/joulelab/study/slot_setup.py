"""Prepare a slot: choose its GPUs and caps, cool down, and make the options of its run."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab import instruments as meters
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.scope import find_family
from joulelab.core.text import finite_or_none
from joulelab.instruments.visible import CUDA, HIP, VisibleGpus, read_node_gpus
from joulelab.run.config.configuration import load_config
from joulelab.run.config.meter_choice import choose_meters
from joulelab.run.run_options import RunOptions, get_host_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from joulelab.control.client import CapRequest
    from joulelab.core.spec import Meter, Stream
    from joulelab.study.folder import Settings
    from joulelab.study.knobs import Value
    from joulelab.study.matrix import NodeType


# Environment in which a workload sees no GPU; meters still see them.
HIDDEN_GPUS = {CUDA: "-1", HIP: "-1"}


@dataclass(frozen=True, slots=True)
class UsedGpus:
    """Hold the GPUs that a workload may use, and those of the node that idle and cost energy too."""

    node_type: str
    uses: str
    used: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data, for the record of a slot."""
        return {"node_type": self.node_type, "uses": self.uses, "gpus": list(self.used), "idle_gpus": list(self.idle)}


def find_used_gpus(node: NodeType, visible: VisibleGpus) -> UsedGpus:
    """Return which GPUs of a node a workload uses, by the visible ones."""
    every = read_visible_gpus({}).scopes
    parts = {scope.partition("/")[0] for scope in visible.scopes}
    return UsedGpus(node.name, node.uses, visible.scopes, tuple(scope for scope in every if scope not in parts))


def read_visible_gpus(environ: Mapping[str, str]) -> VisibleGpus:
    """Return the GPUs that are visible in an environment, maybe none."""
    return read_node_gpus().find_visible(environ)


def list_cap_requests(knobs: Mapping[str, Value], gpus: VisibleGpus, packages: Sequence[str]) -> list[CapRequest]:
    """Return a cell's caps: on exactly the GPUs it uses, and on every CPU package. Raises ConfigError."""
    from joulelab.control.client import CapRequest

    wanted: list[CapRequest] = []
    for name in ("cap", "clock"):
        if name in knobs:
            _check_gpus(gpus, name)
            wanted += [_make_cap_request(CapRequest, scope, knobs[name]) for scope in gpus.scopes]
    if "cpu_cap" in knobs:
        if not packages:
            raise ConfigError("there is no CPU package to cap", where="knob cpu_cap", next="joulelab cap status")
        wanted += [_make_cap_request(CapRequest, scope, knobs["cpu_cap"]) for scope in packages]
    return wanted


def _make_cap_request(kind: type[CapRequest], scope: str, value: Value) -> CapRequest:
    unit: Any = value.unit
    return kind(scope, float(value.value), unit)


def _check_gpus(gpus: VisibleGpus, name: str) -> None:
    where = f"knob {name}"
    if not gpus.scopes:
        raise ConfigError("there is no GPU to cap", where=where, why=gpus.why, next="joulelab meters")
    gpus.check_caps(where)


def list_cpu_packages(knobs: Mapping[str, Value], environ: Mapping[str, str]) -> list[str]:
    """Return the scopes of the CPU packages, if a knob is about them."""
    if "cpu_cap" not in knobs:
        return []
    from joulelab.control.client import Caps

    with Caps(environ) as caps:
        found = [d.scope for d in caps.status().devices if find_family(d.scope) == "cpu"]
    return list(dict.fromkeys(found))


THERMOMETERS = ("nvml", "amdsmi")
TEMPERATURE = "temperature_c"
COOLING_POLL_S = 1.0


class Thermometer:
    """Read how warm the warmest GPU is, in degC."""

    def __init__(self, opened: list[tuple[Meter, Stream, int]]) -> None:
        self._opened = opened

    @property
    def scopes(self) -> list[str]:
        """Return the GPUs that report a temperature."""
        return [stream.scope for _, stream, _ in self._opened]

    def read(self) -> float:
        """Return the highest temperature, NaN if none can be read now."""
        found = []
        for meter, stream, column in self._opened:
            with contextlib.suppress(JoulelabError):
                found.append(float(meter.read(stream)[column]))
        return max((t for t in found if math.isfinite(t)), default=math.nan)


@contextlib.contextmanager
def open_thermometer(scopes: Collection[str] | None = None) -> Iterator[Thermometer]:
    """Open the temperature sensors of GPUs (None: of all)."""
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
    """Cool down as set; return duration, temperatures before and after, and why it ended.

    `pause` waits a time (s) and returns False if the slot is stopped.
    """
    began = now()
    happened: dict[str, Any] = {"reason": "none asked for"}
    if settings.cool_s > 0:
        whole = pause(settings.cool_s)
        happened = {"asked_s": settings.cool_s, "reason": "time" if whole else "interrupted"}
    elif settings.cool_c is not None:
        with opened(scopes) as gauge:
            happened = _wait_until_cool(gauge, settings.cool_c, began + round(settings.cool_limit_s * NS), pause, now)
        happened |= {"asked_c": settings.cool_c, "limit_s": settings.cool_limit_s}
    return happened | {"took_s": (now() - began) / NS}


def _wait_until_cool(
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


def make_run_options(
    settings: Settings,
    environ: Mapping[str, str],
    runs: Path,
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    caps: Sequence[CapRequest] = (),
) -> tuple[RunOptions, list[str]]:
    """Return the options of a slot's run, and warnings. Raises ConfigError for an unknown meter."""
    config = load_config(environ, get_host_name(), named=None if settings.config is None else Path(settings.config))
    chosen = choose_meters(config, environ, settings.meters, settings.without)
    defaults = config.run
    period_s = settings.period_s if settings.period_s is not None else defaults.get("period_s", 0.1)
    rated = {} if settings.rated_cpu_w is None else {"cpu_w": settings.rated_cpu_w}
    options = RunOptions(
        runs=runs,
        name=name,
        labels=dict(labels or {}),
        also=[{"meter": "estimate", "config": rated}] if settings.estimate else [],
        period_s=period_s,
        slow_period_s=max(1.0, period_s),
        idle_s=settings.idle_s if settings.idle_s is not None else defaults.get("idle_s", 0.0),
        tail_s=defaults.get("tail_s", 0.3),
        caps=tuple(caps),
    )
    named = None if settings.config is None else Path(settings.config)
    read = options.with_meters(chosen, file=named, wanted=settings.meters, without=settings.without)
    return read, [*map(str, chosen.lost), *config.warnings, *chosen.warnings]
