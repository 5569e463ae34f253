"""Prepare slots: caps on the GPUs that they use, and cool-down in virtual time."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import pytest

from joulelab.control.client import CapRequest
from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.core.spec import Spec, Stream
from joulelab.instruments.nvml.client import Gpu, Mig
from joulelab.instruments.visible import VisibleGpus, see_nvidia_gpus
from joulelab.study.folder import Settings
from joulelab.study.knobs import read_caps, read_clocks
from joulelab.study.slot_setup import Thermometer, cool_down, list_cap_requests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


FOUR = [Gpu(i, f"GPU-{i}{i}{i}", "H100") for i in range(4)]
MIXED = [Gpu(0, "GPU-0", "H100"), Gpu(1, "GPU-1", "T4")]


def test_caps_go_on_exactly_the_gpus_that_are_used() -> None:
    knobs = {"cap": read_caps("170")[0], "clock": read_clocks("1200")[0], "cpu_cap": read_caps("80%")[0]}
    assert list_cap_requests(knobs, see_nvidia_gpus(FOUR, {}).take_first(2), ["cpu:0", "cpu:1"]) == [
        CapRequest("gpu:0", 170.0, "W"),
        CapRequest("gpu:1", 170.0, "W"),
        CapRequest("gpu:0", 1.2e9, "Hz"),
        CapRequest("gpu:1", 1.2e9, "Hz"),
        CapRequest("cpu:0", 0.8, "share"),
        CapRequest("cpu:1", 0.8, "share"),
    ]


def test_caps_that_cannot_be_set_are_refused() -> None:
    cap = {"cap": read_caps("170")[0]}
    parts = [Gpu(0, "GPU-0", "H100", mig=(Mig(1, "MIG-1", "1g", 1, 0),))]
    for seen, said in (
        (VisibleGpus(why="no driver"), "no GPU to cap.*no driver"),
        (see_nvidia_gpus(parts, {"CUDA_VISIBLE_DEVICES": "MIG-1"}), "part of a GPU"),
        (see_nvidia_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "0"}), "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ):
        with pytest.raises(ConfigError, match=said):
            list_cap_requests(cap, seen, [])
    assert list_cap_requests(
        cap, see_nvidia_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}), []
    )
    with pytest.raises(ConfigError, match="no CPU package"):
        list_cap_requests({"cpu_cap": read_caps("100")[0]}, VisibleGpus(), [])


STATE = Stream("gpu:0.state", "state", "gpu:0", 1.0, (Spec("temperature_c", "temperature", "degC"),))


class Bench:
    """Cool a GPU by 2 degC in each second of a time of its own."""

    def __init__(self, start_c: float, end_after_s: float = math.inf) -> None:
        self.now_s, self.start_c, self.end_after_s = 0.0, start_c, end_after_s
        self.broken = False

    def read(self, stream: Stream) -> Sequence[float]:
        if self.broken:
            raise ReadFailed("no temperature")
        return [max(self.start_c - 2 * self.now_s, 30.0)]

    def streams(self) -> Sequence[Stream]:
        return [STATE]

    def close(self) -> None: ...

    def pause(self, seconds: float) -> bool:
        self.now_s = min(self.now_s + seconds, self.end_after_s)
        return self.now_s < self.end_after_s

    @contextlib.contextmanager
    def opened(self, scopes: Collection[str] | None) -> Iterator[Thermometer]:
        yield Thermometer([(self, STATE, 0)] if scopes else [])

    def cool(self, settings: Settings, scopes: Sequence[str] = ("gpu:0",)) -> dict[str, object]:
        return cool_down(settings, scopes, self.pause, now=lambda: round(self.now_s * 1e9), opened=self.opened)


def test_it_waits_until_the_gpus_are_cool() -> None:
    assert Bench(60).cool(Settings(cool_c=45, cool_limit_s=100)) == {
        "reason": "temperature", "from_c": 60, "to_c": 44, "took_s": 8, "asked_c": 45, "limit_s": 100,
    }  # fmt: skip
    assert Bench(40).cool(Settings(cool_c=45))["took_s"] == 0


def test_it_waits_no_longer_than_the_limit() -> None:
    assert Bench(60).cool(Settings(cool_c=25, cool_limit_s=3.5)) | {} == {
        "reason": "limit", "from_c": 60, "to_c": 53, "took_s": 3.5, "asked_c": 25, "limit_s": 3.5,
    }  # fmt: skip


def test_a_time_is_waited_for_in_any_case() -> None:
    assert Bench(20).cool(Settings(cool_s=60)) == {"reason": "time", "asked_s": 60, "took_s": 60}
    assert Bench(20).cool(Settings())["reason"] == "none asked for"


def test_what_cannot_be_read_is_not_cool() -> None:
    bench = Bench(20)
    bench.broken = True
    happened = bench.cool(Settings(cool_c=45, cool_limit_s=2))
    assert (happened["reason"], happened["from_c"], happened["to_c"]) == ("limit", None, None)
    assert Bench(20).cool(Settings(cool_c=45), ())["reason"] == "no temperature"


@pytest.mark.parametrize("settings", [Settings(cool_c=20), Settings(cool_s=20)])
def test_it_ends_when_the_slot_shall(settings: Settings) -> None:
    happened = Bench(90, end_after_s=5).cool(settings)
    assert (happened["reason"], happened["took_s"]) == ("interrupted", 5)
