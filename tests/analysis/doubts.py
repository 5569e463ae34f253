"""Make runs that a referee may doubt, and return what he says."""

from __future__ import annotations

import numpy as np
from tests.analysis.folders import gpu

from joulelab.analysis.analyse import analyse

T = np.arange(0, 20, 0.1)
START, END = 5.0, 15.0
STATE = ("cap_enforced_w", "cap_requested_w", "throttle")
SECONDS = np.arange(0.5, 20, 1.0)


def steady(folder, watts=300.0, index=0, keep=None, **more):
    keep = np.ones(T.size, dtype=bool) if keep is None else keep
    return folder.add("nvml", gpu(index, **more), T[keep], watts * T[keep], np.full(keep.sum(), watts))


def checks(folder, name, *, end=END):
    if not (folder.path / "end.json").exists():
        folder.close(START, end)
    return [(c.status, c.message, c.next) for c in analyse(folder.open()).checks if c.name == name]


def only(folder, name, **more):
    (found,) = checks(folder, name, **more)
    return found
