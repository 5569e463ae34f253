"""Make runs that a referee may doubt, and return the checks."""

from __future__ import annotations

import numpy as np
from tests.analysis.folders import gpu
from tests.worded import assert_check_worded

from joulelab.analysis.analyse import analyse_run

T = np.arange(0, 20, 0.1)
START, END = 5.0, 15.0
STATE = ("cap_enforced_w", "cap_requested_w", "throttle")
SECONDS = np.arange(0.5, 20, 1.0)


def steady(folder, watts=300.0, index=0, keep=None, **more):
    keep = np.ones(T.size, dtype=bool) if keep is None else keep
    return folder.add("nvml", gpu(index, **more), T[keep], watts * T[keep], np.full(keep.sum(), watts))


def checks(folder, code, *, end=END):
    """Return the checks of a code, or of all cases of one."""
    if not (folder.path / "end.json").exists():
        folder.close(START, end)
    return named(analyse_run(folder.open()), code)


def named(result, code):
    for check in result.checks:
        assert_check_worded(check)
    return [c for c in result.checks if code in (c.code, c.code.partition(".")[0])]


def only(folder, code, **more):
    (found,) = checks(folder, code, **more)
    return found
