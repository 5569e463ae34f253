"""The C library through the real nvidia-ml-py, in processes of their own, against the truth."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from joulelab.core.clock import monotonic_ns
from joulelab.twin import profile
from joulelab.twin.flaws import Counter
from joulelab.twin.model import A100, H100, RTX3090, RTX6000, V100, Node
from joulelab.twin.readings import read_average_w, read_counter_j, read_instant_w

from .conftest import Twin, finish

pytestmark = pytest.mark.system

NS = 10**9
Make = Callable[..., Twin]

# Reads every GPU, at least 7 ms apart, until `enough(rows)`.
READ = """
rows = []
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
fields = [n.NVML_FI_DEV_POWER_INSTANT, n.NVML_FI_DEV_POWER_AVERAGE, n.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION]
def value(v):
    if v.nvmlReturn: return None
    return v.value.ullVal if v.valueType == n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG else v.value.uiVal
def read(enough):
    while not enough(rows):
        for i, h in enumerate(handles):
            before = time.monotonic_ns()
            values = n.nvmlDeviceGetFieldValues(h, fields)
            plain = n.nvmlDeviceGetPowerUsage(h)
            rows.append([i, before, time.monotonic_ns(), *map(value, values), plain])
        time.sleep(0.007)
"""
READ_ROUNDS = READ + "read(lambda rows: len(rows) >= int(sys.argv[1]) * len(handles))\n"
ROUNDS = 60  # 0.4 s on a quiet machine


def moments(row: list[Any]) -> npt.NDArray[np.int64]:
    """Return times of a reading, finer than any update: it may have been held up between two lines."""
    _, before, after, *_ = row
    return np.append(np.arange(before, after, NS // 1000), after)


def check(twin: Twin, rows: list[list[Any]]) -> None:
    """Hold every reading against what the flaws make of the truth at some time from just before to just after it."""
    truth = twin.truth
    for row in rows:
        gpu, times = row[0], moments(row)
        flaws, curve, start_ns = truth.read_flaws(gpu), truth.curve(f"gpu:{gpu}"), truth.start_ns
        instant = read_instant_w(curve, flaws, times, start_ns=start_ns, seed=truth.node.seed, gpu=gpu)
        average = read_average_w(curve, flaws, times, start_ns=start_ns)
        counter = read_counter_j(curve, flaws, times, start_ns=start_ns)
        plain = average if flaws.plain == "average" and flaws.average_window_s else instant
        for expected, shown in zip((instant, average, counter, plain), row[3:], strict=True):
            if shown is None:
                assert np.isnan(expected).all(), row
            else:
                assert np.abs(expected - shown / 1000).min() < 0.00101, row


def test_every_generation_shows_the_truth_through_its_flaws(make_twin: Make) -> None:
    node = Node(gpus=(H100, A100, V100, RTX6000, RTX3090), packages=1)
    shapes = {"gpu": profile.square(0.35, 0.3), "gpu:2": profile.ramp(0.8), "gpu:3": profile.burst(0.3, 0.2)}
    twin = make_twin(node, shapes)
    rows = twin.run(READ_ROUNDS + "print(json.dumps(rows))", 80)
    assert len({row[5] for row in rows if row[0] == 0}) > 4
    check(twin, rows)


def test_flaws_in_every_combination(make_twin: Make) -> None:
    changes: list[dict[str, Any]] = [
        {"counter": Counter.SEEN, "gain_error": 0.05, "offset_w": -4.0},
        {"counter": Counter.SEEN, "power_phase_s": 0.033, "counter_phase_s": 0.071, "counter_period_s": 0.05},
        {"noise_w": 6.0, "power_step_mw": 500, "counter_step_mj": 1000, "power_period_s": 0.02},
        {"counter": Counter.NONE, "average_window_s": 0.25, "power_window_s": 0.3},
        {"power_period_s": 0.0, "power_window_s": 0.0, "counter_period_s": 0.0, "gain_error": -0.1},
    ]
    node = Node(gpus=(H100,) * len(changes), packages=0)
    for gpu, change in enumerate(changes):
        node = node.with_flaws(gpu, **change)
    twin = make_twin(node, {"gpu": profile.from_arrays([0, 0.1, 0.3, 0.5, 0.9], [80, 600, 300, 700, 90])})
    rows = twin.run(READ_ROUNDS + "print(json.dumps(rows))", ROUNDS)
    exact = [row for row in rows if row[0] == 4]
    for row in exact:
        _, before, after, instant, _, counter, _ = row
        powers = 900 * twin.truth.power("gpu:4", moments(row))
        assert powers.min() - 300 <= instant <= powers.max() + 300
        energies = [123_456_789 + 900 * twin.truth.energy("gpu:4", twin.truth.start_ns, t) for t in (before, after)]
        assert energies[0] - 1 <= counter <= energies[1] + 1
    check(twin, [row for row in rows if row[0] != 4])


def test_counters_agree_with_the_energy(make_twin: Make) -> None:
    """Over whole counter steps the counter that integrates true power is the energy; the other one need not be."""
    node = Node(gpus=(H100, H100), packages=0, spread=0.0).with_flaws(1, counter=Counter.SEEN)
    twin = make_twin(node, {"gpu": profile.square(0.1, 0.5, 100, 500, unit="W")})
    rows = twin.run(READ_ROUNDS + "print(json.dumps(rows))", ROUNDS)
    counted = []
    for gpu, per_step in ((0, 30_000), (1, 10_000)):  # in step with the refresh, the sensor sees only the low half
        energies = np.array([row[5] for row in rows if row[0] == gpu])
        steps = (energies - energies[0]) / per_step
        assert np.all(abs(steps - np.rint(steps)) * per_step <= 1 + np.rint(steps))  # each step may be 1 mJ off
        counted.append(round(steps[-1]))
    assert counted[0] >= 4
    assert abs(counted[0] - counted[1]) <= 1  # one is read a little later
    check(twin, rows)


CAP = """
h = n.nvmlDeviceGetHandleByIndex(0)
asked = time.monotonic_ns()
n.nvmlDeviceSetPowerManagementLimit(h, int(sys.argv[2]))
done = time.monotonic_ns()
"""


def test_caps_clip_persist_and_are_in_the_truth(make_twin: Make) -> None:
    twin = make_twin(Node(gpus=(H100, H100), packages=0, spread=0.0), {"gpu": profile.constant(650, unit="W")})
    before, after, rows = twin.run(CAP + READ_ROUNDS + "print(json.dumps([asked, done, rows]))", ROUNDS, 300_000)
    end = after + NS
    joules = twin.truth.energy("gpu:0", before, end)
    assert 300 * (end - before) / NS <= joules <= 650 * (after - before) / NS + 300 * (end - after) / NS
    assert twin.truth.energy("gpu:1", before, end) == pytest.approx(650 * (end - before) / NS)
    check(twin, rows)
    limits = """
    h = n.nvmlDeviceGetHandleByIndex(0)
    ids = [n.NVML_FI_DEV_POWER_MIN_LIMIT, n.NVML_FI_DEV_POWER_MAX_LIMIT, n.NVML_FI_DEV_POWER_DEFAULT_LIMIT,
           n.NVML_FI_DEV_POWER_CURRENT_LIMIT, n.NVML_FI_DEV_POWER_REQUESTED_LIMIT]
    print(json.dumps({
        "requested": n.nvmlDeviceGetPowerManagementLimit(h), "enforced": n.nvmlDeviceGetEnforcedPowerLimit(h),
        "default": n.nvmlDeviceGetPowerManagementDefaultLimit(h),
        "range": n.nvmlDeviceGetPowerManagementLimitConstraints(h),
        "fields": [v.value.uiVal for v in n.nvmlDeviceGetFieldValues(h, ids)],
        "reasons": n.nvmlDeviceGetCurrentClocksEventReasons(h),
        "clock": n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM) / n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
        "load": n.nvmlDeviceGetUtilizationRates(h).gpu}))
    """
    found = twin.run(limits)
    assert (found["requested"], found["enforced"], found["default"]) == (300_000, 300_000, 700_000)
    assert found["range"] == [200_000, 700_000]
    assert found["fields"] == [200_000, 700_000, 700_000, 300_000, 300_000]
    assert found["reasons"] & 4
    assert found["clock"] == pytest.approx(((300 - 70) / (650 - 70)) ** 0.5, abs=0.001)
    assert found["load"] > 90
    twin.truth.set_cap(0, 700)
    assert not twin.run(limits)["reasons"] & 4


def test_caps_out_of_range_refused_and_out_of_band(make_twin: Make) -> None:
    node = Node(gpus=(H100,) * 3, packages=0).with_flaws(1, refuse_caps=True).with_flaws(2, outside_cap_w=250.0)
    found = make_twin(node, {"gpu": profile.constant(1)}).run("""
        def trial(gpu, mw):
            try:
                n.nvmlDeviceSetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(gpu), mw)
            except n.NVMLError as error:
                return error.value
        out = [trial(0, 199_999), trial(0, 700_001), trial(1, 300_000), trial(0, 250_000), trial(2, 600_000)]
        h = n.nvmlDeviceGetHandleByIndex(2)
        print(json.dumps(out + [n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetEnforcedPowerLimit(h)]))
    """)
    assert found == [2, 2, 4, None, None, 600_000, 250_000]


def test_a_forgotten_cap(make_twin: Make) -> None:
    twin = make_twin(Node(gpus=(H100,), packages=0), {"gpu": profile.constant(1)})
    twin.truth.set_cap(0, 300)
    twin.truth.change_flaws(0, forget_cap_at_s=twin.truth.count_seconds())
    get = "print(json.dumps(n.nvmlDeviceGetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(0))))"
    assert twin.run(get) == 700_000
    twin.truth.set_cap(0, 250)
    assert twin.run(get) == 250_000


def test_noise_is_the_same_for_every_process(make_twin: Make) -> None:
    """It is drawn from the node's seed and the number of the update, which `check` does as well."""
    twin = make_twin(Node(gpus=(V100,), packages=0).with_flaws(noise_w=5.0), {"gpu": profile.constant(0.5)})
    children = [twin.start(READ_ROUNDS + "print(json.dumps(rows))", ROUNDS) for _ in range(2)]
    for child in children:
        rows = finish(child)
        check(twin, rows)
        assert len({row[3] for row in rows}) > 5


CALLS = """
h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def call(i, function=n.nvmlDeviceGetPowerUsage):
    began = time.monotonic_ns()
    try: result = function(h[i])
    except n.NVMLError as error: result = -error.value
    return [began, time.monotonic_ns(), result]
"""


def test_late_hung_failing_and_lost(make_twin: Make) -> None:
    node = Node(gpus=(H100,) * 5, packages=0).with_flaws(1, latency_s=0.05)
    twin = make_twin(node)
    code = (
        CALLS
        + """
print("ready", file=sys.stderr, flush=True)
over_ns = int(sys.stdin.readline())
rows = [call(i) for i in range(5)]
time.sleep(max(over_ns - time.monotonic_ns(), 0) / 1e9)
rows += [call(i) for i in range(5)]
try: n.nvmlDeviceGetHandleByIndex(4); handle = 0
except n.NVMLError as error: handle = error.value
print(json.dumps([rows, handle, n.nvmlDeviceGetCount()]))
"""
    )
    child = twin.start(code)
    assert child.stderr is not None
    child.stderr.readline()  # it is ready
    now = twin.truth.count_seconds()
    twin.truth.change_flaws(2, hang_at_s=now, hang_for_s=0.5)
    twin.truth.change_flaws(3, fail_at_s=now, fail_for_s=0.6)
    twin.truth.change_flaws(4, lost_at_s=now)
    rows, handle, count = finish(child, f"{twin.truth.start_ns + round((now + 0.6) * NS) + 1}\n")
    hangs, fails = (twin.truth.start_ns + round((now + for_s) * NS) for for_s in (0.5, 0.6))
    for usual, late, hung, failed, lost in (rows[:5], rows[5:]):
        assert usual[2] > 0
        assert late[2] > 0
        assert late[1] - late[0] >= 0.05 * NS
        assert hung[2] > 0
        assert hung[1] >= hangs - 1000  # whenever it was called: it has no answer before
        assert failed[2] == -999 if failed[1] < fails else failed[0] < fails or failed[2] > 0
        assert lost[2] == -15
    assert (handle, count) == (15, 5)


def test_a_failing_gpu(make_twin: Make) -> None:
    twin = make_twin(Node(gpus=(H100,), packages=0))
    assert twin.run(CALLS + "print(json.dumps(call(0)[2]))") > 0
    twin.truth.change_flaws(0, fail_at_s=twin.truth.count_seconds(), fail_for_s=60.0)
    handle = "try: n.nvmlDeviceGetHandleByIndex(0)\nexcept n.NVMLError as e: print(json.dumps([e.value, str(e)]))"
    assert twin.run(handle) == [999, "Unknown Error"]


def test_a_counter_that_falls(make_twin: Make) -> None:
    node = Node(gpus=(H100, H100), packages=0).with_flaws(1, counter=Counter.SEEN)
    # It has counted for so long that the fall is seen, however late somebody looks.
    twin = make_twin(node, {"gpu": profile.constant(1)}, start_ns=monotonic_ns() - 120 * NS)
    child = twin.start(
        READ
        + """
read(lambda rows: len(rows) >= 4)
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
def fell(rows):  # each has fallen, and goes on
    counts = [[row[5] for row in rows if row[0] == gpu] for gpu in (0, 1)]
    return all(c[-1] < c[0] and c[-1] > min(c) for c in counts)
read(fell)
print(json.dumps(rows))
"""
    )
    assert child.stderr is not None
    child.stderr.readline()
    reset_s = twin.truth.count_seconds() + 0.2
    for gpu in (0, 1):
        twin.truth.change_flaws(gpu, reset_at_s=reset_s)
    rows = finish(child, "go\n")
    since_ns = twin.truth.start_ns + round(reset_s * NS)
    for gpu in (0, 1):
        mine = [row for row in rows if row[0] == gpu]
        (fallen,) = [b for a, b in itertools.pairwise(mine) if b[5] < a[5]]
        assert fallen[2] >= since_ns
        assert fallen[5] <= 1000 * twin.truth.energy(f"gpu:{gpu}", since_ns - NS // 5, fallen[2])  # counts from zero


def test_threads_share_the_library(make_twin: Make) -> None:
    twin = make_twin(Node(gpus=(H100,) * 2, packages=0), {"gpu": profile.square(0.05)})
    found = twin.run("""
        import threading
        h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        wrong = []
        def work():
            last = [0, 0]
            for _ in range(2000):
                for i in range(2):
                    now = n.nvmlDeviceGetTotalEnergyConsumption(h[i])
                    if now < last[i]: wrong.append((last[i], now))
                    last[i] = now
                    n.nvmlDeviceGetPowerUsage(h[i])
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(json.dumps(wrong))
    """)
    assert found == []


@pytest.mark.campaign
def test_a_reading_is_cheap(make_twin: Make) -> None:
    found = make_twin(Node(packages=0), {"gpu": profile.square(0.01)}).run("""
        h = n.nvmlDeviceGetHandleByIndex(0)
        values = (n.c_nvmlFieldValue_t * 3)()
        for v, field in zip(values, (83, 185, 186)): v.fieldId = field
        call, began = n.nvmlLib.nvmlDeviceGetFieldValues, time.process_time()
        for _ in range(20000): call(h, 3, values)
        print(json.dumps((time.process_time() - began) / 20000))
    """)
    assert found < 20e-6
