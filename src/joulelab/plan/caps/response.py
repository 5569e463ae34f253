"""Say what a power cap does to a job: how much longer it takes, and what the node draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.caps.between import between
from joulelab.twin.model import H100, PRESETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.draws import Measured

# GPUs that are capped draw this share of the cap on average (cap sweeps on three kinds of GPU).
HELD = 0.95
# Where only the whole node was measured: the share of GPUs in it while it trains, and how surely (1 sd).
GPU_SHARE, U_GPU_SHARE = 0.70, 0.06
# What a watt less on the GPUs is at the wall: supplies, regulators and fans follow. Between 1.0 and 1.16.
AT_WALL, U_AT_WALL = 1.08, 0.04
# How far the curve was off (1 sd of the logarithm of time), by the share of its power that was left to the GPU. Chosen
# on public sweeps of RTX 6000 and V100, single runs, whose own scatter is in it: no test on data that it has not seen.
# With curve and error of one of the two, the other's times were covered at k = 2 in 95 % (RTX 6000) and 92 % (V100).
# Below the first share nothing is said: times of twice and four times are found there.
SHARES = (0.4, 0.5, 0.6, 0.7, 1.0)
OFF = (0.30, 0.20, 0.09, 0.045, 0.045)
LOWEST, STEP = 0.4, 0.05  # caps of the model, as shares of the highest


@dataclass(frozen=True, slots=True)
class Point:
    """Hold one cap (W on each GPU): time as a ratio to that without caps, mean and highest power of a node (W)."""

    cap_w: float
    slowdown: Quantity
    node_w: Quantity
    highest_w: float
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """Hold what caps do, from the lowest to the highest; the last is the reference, without a cap of its own.

    `source` says whether it was measured (also on a twin) or is a model of other GPUs' measurements; `said` is for
    people: what it was made from, and what to doubt. `tag` sets its terms apart from those of others.
    """

    points: tuple[Point, ...]
    source: Literal["measured", "twin", "model"]
    said: str = ""
    tag: str = ""

    @property
    def caps_w(self) -> tuple[float, ...]:
        """Return the caps there are points for, in W."""
        return tuple(p.cap_w for p in self.points)

    def at(self, cap_w: float) -> Point:
        """Return what a cap does, between the points by interpolation, its uncertainty included.

        The highest power is that of the next point above: a bound. Raises ConfigError outside of the points: nothing
        is extrapolated.
        """
        caps = self.caps_w
        if not caps or not caps[0] <= cap_w <= caps[-1]:
            what = {"model": "modelled", "twin": "simulated"}.get(self.source, "measured")
            why = f"caps from {caps[0]:g} to {caps[-1]:g} W were {what}" if caps else "no cap was measured"
            raise ConfigError(f"nothing is known of a cap of {cap_w:g} W", why=why, next="measure it, or name another")
        above = next(k for k, cap in enumerate(caps) if cap >= cap_w)
        if caps[above] == cap_w:
            return self.points[above]
        span = f"{caps[above - 1]:g}-{caps[above]:g}@{self.tag}"
        slowdown = between(caps, [p.slowdown for p in self.points], cap_w, f"curve:time:{span}")
        node_w = between(caps, [p.node_w for p in self.points], cap_w, f"curve:power:{span}")
        return Point(cap_w, slowdown, node_w, self.points[above].highest_w)


def response_of(measured: Sequence[Measured], *, highest_cap_w: float | None = None) -> Response:
    """Return what caps do from runs of one workload at several caps (a run without a cap is the reference).

    Time is per work where work was reported alike in all of them, else that of the run. The cap of a run without one
    is the GPU's own limit, as it was recorded; `highest_cap_w` where it was not. Raises ConfigError where runs are of
    different workloads, or fewer than two caps were measured.
    """
    from joulelab.plan.caps.capped_runs import fitted

    points, said, tag = fitted(measured, highest_cap_w)
    return Response(points, "twin" if measured[0].result.twin else "measured", said, tag)


def known_response(measured: Sequence[Measured], *, gpu_w: float | None = None) -> Response:
    """Return what caps do as it was measured, by the model where runs are all at one cap.

    `gpu_w` is the highest cap of a GPU, for runs that did not record it. Raises ConfigError where runs are of different
    workloads, or where nothing of their GPUs is known.
    """
    from joulelab.plan.caps.capped_runs import caps_of, uncapped

    if len(set(caps_of(measured, gpu_w))) > 1:
        return response_of(measured, highest_cap_w=gpu_w)
    node = uncapped(measured, gpu_w)
    return modelled_response(
        node.node_w, node.highest_w, gpus=node.gpus, gpu_w=node.gpu_w, model=node.model, gpu_mean_w=node.gpu_mean_w
    )


def modelled_response(
    node_w: Quantity,
    highest_w: float,
    *,
    gpus: int,
    gpu_w: float,
    model: str = "",
    gpu_mean_w: float | None = None,
) -> Response:
    """Return what caps would do by the curve of other GPUs, with the error that it had on public sweeps (see OFF).

    `node_w` and `highest_w` are a node's mean and highest power without caps, `gpu_w` the highest cap of each of its
    `gpus`, `gpu_mean_w` what one of them draws on average (W): a share of the node's where nobody measured it. Raises
    ConfigError for a node without GPUs or power.
    """
    if gpus < 1 or gpu_w <= 0 or node_w.value <= 0:
        why = f"{gpus} GPUs of {gpu_w:g} W, a node of {node_w.value:g} W"
        raise ConfigError("what caps do cannot be modelled", why=why, next="give the node's power, gpus and gpu_w")
    share = GPU_SHARE * node_w.value / gpus
    free_w = min(share if gpu_mean_w is None else gpu_mean_w, gpu_w)
    curve, known = _curve_of(model)
    tag = f"model {gpus} x {gpu_w:g} W"
    points = []
    for step in range(round((1 - LOWEST) / STEP) + 1):
        cap_w = round(gpu_w * (1 - step * STEP), 3)
        left = min(1.0, HELD * cap_w / free_w) if step else 1.0
        if left < SHARES[0]:
            break
        saved = gpus * free_w * (1 - left)
        points.append(
            Point(
                cap_w,
                _modelled_time(curve, left, tag) if step else Quantity(1.0),
                _modelled_power(node_w, saved, measured=gpu_mean_w is not None, tag=tag),
                max(highest_w - saved, 0.0),
            )
        )
    said = _model_said(known, assumed=gpu_mean_w is None)
    return Response(tuple(reversed(points)), "model", said, tag)


def _model_said(known: str, *, assumed: bool) -> str:
    share = f"; GPUs are taken to draw {GPU_SHARE:.0%} of the node's power" if assumed else ""
    return (
        f"modelled by the curve of {known or 'other GPUs'}, not measured: public cap sweeps of an RTX 6000 and a "
        f"V100 in training{share}. Measure three caps before you trust it"
    )


def _curve_of(model: str) -> tuple[tuple[float, float], str]:
    """Return a and k of a kind of GPU and its name; those that stand for all, and none, where it is not known."""
    plain = _plain(model)
    for short, gpu in PRESETS.items():
        if plain and (short in plain or plain in _plain(gpu.name)) and gpu.slowdown != H100.slowdown:
            return gpu.slowdown, short
    return H100.slowdown, ""  # no public sweep has an H100: it is modelled by what is between the others


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "")


def _modelled_time(curve: tuple[float, float], left: float, tag: str) -> Quantity:
    a, k = curve
    value = 1 + a * (math.pow(left, -k) - 1)
    return Quantity(value, {f"model:time@{tag}": value * float(np.interp(left, SHARES, OFF))})


def _modelled_power(node_w: Quantity, saved_w: float, *, measured: bool, tag: str) -> Quantity:
    """Return the node's power with so much less on its GPUs, what is not known of supplies and fans included."""
    less = AT_WALL * saved_w
    terms = {f"model:wall@{tag}": -U_AT_WALL * saved_w}
    if not measured:
        terms[f"model:share@{tag}"] = -less * U_GPU_SHARE / GPU_SHARE
    return node_w + Quantity(-less, terms if saved_w else {})
