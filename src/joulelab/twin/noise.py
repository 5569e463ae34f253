"""Draw repeatable noise from integers alone, so that the C library and Python draw the same."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def normal(seed: int, stream: int, index: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return draws of mean 0 and standard deviation 1 for each index, the same on every machine.

    Eight 16-bit uniforms are summed: nearly Gaussian, never beyond 4.9, and exact in integers.
    """
    key = np.uint64((seed + stream * _GOLDEN) & _MASK)
    where = np.atleast_1d(np.asarray(index, dtype=np.int64)).astype(np.uint64)
    first = _mixed(_mixed(where + np.uint64(_GOLDEN)) ^ key)
    second = _mixed(first + np.uint64(_GOLDEN))
    total = np.zeros(where.shape, dtype=np.int64)
    for word in (first, second):
        for shift in (0, 16, 32, 48):
            total += ((word >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    # Eight uniforms on 0..65535 have mean 8 * 32767.5 and variance 8 * (65536^2 - 1) / 12.
    return (total - 262140).astype(np.float64) / math.sqrt(8 * (65536.0**2 - 1) / 12)
