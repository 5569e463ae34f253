"""Several meters of a node under a load that changes every few seconds."""

from __future__ import annotations

import numpy as np
from tests.analysis.folders import METER
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.channels import load_channels
from joulelab.analysis.joining import join_meters
from joulelab.core.spec import Spec, Stream

FAST = np.arange(0, 100, 0.1)
SLOW = np.arange(0.4, 100, 1.0)
START, END = 20.0, 80.0
RNG = np.random.default_rng(4)
ENDS = np.cumsum(RNG.uniform(1.0, 6.0, 60))
LEVELS = np.where((START - 0.01 < ENDS) & (ENDS < END), RNG.uniform(200, 700, 60), 100.0)


def watts(t):
    """Return a load that idles outside of the workload and changes every few seconds in it."""
    t = np.asarray(t, dtype=float)
    return np.where((t >= START) & (t < END), LEVELS[np.minimum(np.searchsorted(ENDS, t), 59)], 100.0)


FINE = np.arange(-10, 110, 0.001)
JOULES = np.concatenate(([0.0], np.cumsum(watts(FINE[:-1]) * 0.001)))


def joules(t):
    return np.interp(t, FINE, JOULES)


def mean(t, window):
    return (joules(t) - joules(np.asarray(t) - window)) / window


def cord(number, parts, meter="pdu1", *, sums="node.ac", kind="outlet", energy=False, given=METER) -> Stream:
    specs = [Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=given)]
    specs += [Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=given)] if energy else []
    scope = f"{kind}:{meter}.{number}" if kind == "outlet" else f"{kind}:{number}"
    return Stream(scope, "power", scope, 1.0, tuple(specs), parent=sums, sums=sums, parts=parts)


def slow_power(scope, *, update=1.0, window=1.0, period=1.0, lag_s=0.0, given=METER) -> Stream:
    spec = Spec("power_w", "power", "W", "power", update, window, accuracy=given, lag_s=lag_s)
    return Stream(scope, "power", scope, period, (spec,))


def true_j(factor=2.0, rest=300.0):
    return factor * (joules(END) - joules(START)) + rest * (END - START)


def result(folder):
    return analyse_run(folder.close(START, END).open())


def scope(found, name):
    return next(s for s in found.scopes if s.scope == name)


def join_of(folder):
    return join_meters(load_channels(folder.open()), ns(START), ns(END)).scopes
