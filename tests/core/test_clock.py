"""Clocks: monotonic time joined to UTC by the tightest of five readings."""

from __future__ import annotations

import ctypes
import time
from itertools import count

import pytest

from joulelab.core import clock
from joulelab.core.clock import read_boot_id, read_clock_error_ns, read_clock_pair


def test_the_tightest_reading_is_kept():
    mono = iter([0, 900, 1000, 1500, 2000, 2040, 3000, 3800, 4000, 4500])
    utc = count(7_000, 1_000)
    pair = read_clock_pair(mono=mono.__next__, utc=utc.__next__)
    assert (pair.mono_ns, pair.utc_ns, pair.width_ns) == (2020, 9_000, 40)
    assert next(mono, None) is None, "five readings, no more"


def test_a_pair_joins_the_clocks_of_this_machine():
    before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    pair = read_clock_pair()
    slack = 1_000_000 + pair.width_ns  # a clock that is just being corrected
    assert utc - after - slack < pair.utc_ns - pair.mono_ns < utc - before + slack
    assert pair.width_ns >= 0
    assert pair.boot_id == read_boot_id()


def test_the_boot_has_an_id_or_none(tmp_path):
    (tmp_path / "boot_id").write_text("11111111-2222\n")
    assert read_boot_id(tmp_path / "boot_id") == "11111111-2222"
    assert read_boot_id(tmp_path / "absent") == ""


def told(maxerror_us: int, status: int):
    def adjtimex(pointer):
        timex = ctypes.cast(pointer, ctypes.POINTER(clock._Timex)).contents
        assert timex.modes == 0, "only asked, never set"
        timex.maxerror = maxerror_us
        return status

    return adjtimex


def missing(_pointer):
    raise AttributeError("adjtimex")


@pytest.mark.parametrize(
    ("adjtimex", "error_ns"),
    [
        (told(16_000_000, 5), 16_000_000_000),  # 5: not synchronised; the bound is still the kernel's
        (told(250, 0), 250_000),
        (told(250, -1), None),
        (missing, None),
    ],
)
def test_the_kernels_bound_is_in_ns(adjtimex, error_ns):
    assert read_clock_error_ns(adjtimex) == error_ns


def test_this_kernel_is_asked_without_harm():
    error = read_clock_error_ns()
    assert error is None or 0 <= error < 3600 * clock.NS
    # The kernel writes a whole struct timex: there must be room for it.
    assert ctypes.sizeof(clock._Timex) >= 208
