"""Solve the calibrated numbers of joulelab's own node files again: `python -m benchmarks calibrate_twins`.

Each fit changes one number (and those that follow from it) until the model itself gives a published figure: without
scatter between runs, flutter and errors of meters, on the node's own boards. Fits go in the order of the node file's
header, each with the numbers solved before. The table shows the solved numbers beside those of the files; the exit code
is 1 where a file has another one.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.twin.nodefile import parse_node
from joulelab.twin.timeline import NS, RunTimes, Timeline, lay_out_run
from joulelab.twin.workload_progress import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulelab.twin.nodefile import Description

AGREEMENT = 1e-3  # relative; node files have three to six digits
# Forward alone, as a share of a training step: a third by FLOP; as measured on CPUs ([sources] of horeka-green).
FORWARD, LSTM_CPU_FORWARD, VGG_CPU_FORWARD = 1 / 3, 0.29, 0.28


@dataclass(frozen=True, slots=True)
class Place:
    """Name a number of a node file: its table and key; it is `scale` times the solved value, and `offset` more."""

    table: dict[str, Any] | list[Any]
    key: Any
    scale: float = 1.0
    offset: float = 0.0

    def read(self) -> float:
        """Return the solved value that the number stands for."""
        return float((self.table[self.key] - self.offset) / self.scale)

    def write(self, value: float) -> None:
        """Put a solved value in."""
        self.table[self.key] = value * self.scale + self.offset


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold one calibration: the figure and its value, what the model gives for it, the numbers and their range."""

    figure: str
    target: float
    measure: Callable[[], float]
    number: str
    places: list[Place]
    low: float
    high: float

    def solve(self) -> float:
        """Return the value with which the model gives the figure, by bisection; it stays in the node's tables."""

        def try_value(value: float) -> float:
            for place in self.places:
                place.write(value)
            return self.measure()

        low, high = self.low, self.high
        rises = try_value(high) > try_value(low)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if (try_value(middle) < self.target) == rises else (low, middle)
        return (low + high) / 2


class NodeTable:
    """Hold the tables of a node file, to change numbers and to run its workloads without scatter."""

    def __init__(self, name: str) -> None:
        text = (resources.files("joulelab.twin") / "nodes" / f"{name}.toml").read_text("utf-8")
        self.name, self.table = name, tomllib.loads(text)

    def find_stages(
        self, workload: str, names: Iterable[str], key: str, scale: float = 1.0, on: str = ""
    ) -> list[Place]:
        """Return a number of the stages of a workload, by their names and devices, where they have it."""
        stages: list[dict[str, Any]] = self.table["workloads"][workload]["stages"]
        whole = [one for one in stages if one.get("name") in names and "part" not in one]
        return [Place(one, key, scale) for one in whole if one.get("on", "") == on and key in one]

    def describe(self) -> Description:
        """Return the node as it is now."""
        return parse_node("", self.name, self.table)

    def run(self, workload: str, gpus: int, cap_w: float | None = None, **parameters: float) -> Timeline:
        """Return one run of a workload, without scatter and flutter."""
        described = self.describe()
        model = described.workloads[workload]
        stages = tuple(replace(stage, flutter=0.0) for stage in model.stages)
        model = replace(model, stages=stages, time_scatter=0.0, power_scatter=0.0)
        used = tuple(range(gpus))
        caps = {} if cap_w is None else dict.fromkeys(used, cap_w)
        return lay_out_run(described.node, model, RunRequest(parameters, used, caps), RunTimes(), 0)


def compute_duration(run: Timeline) -> float:
    """Return the time of a run (s)."""
    return (run.end_ns - run.start_ns) / NS


def compute_mean(run: Timeline) -> float:
    """Return the mean power of a run behind the supplies (W)."""
    return run.energy("node.dc", run.start_ns, run.end_ns) / compute_duration(run)


def compute_median(run: Timeline) -> float:
    """Return the median of the wall power (W), read once a minute as the mean of a second."""
    times = np.arange(run.start_ns, run.end_ns - NS, 60 * NS)
    return float(np.median([run.energy("node.ac", int(t), int(t) + NS) for t in times]))


def list_bnl_fits() -> list[Fit]:
    """Return the fits of bnl-h100: host, fans, time of a step, intensity."""
    node, resnet = NodeTable("bnl-h100"), "resnet152-cifar10"
    host, tested = node.table["host"], ("validation", "predict")

    def compute_idle() -> float:
        found = node.describe().node
        leaves_w = sum(found.range_w(leaf)[0] for leaf in found.list_leaves() if not leaf.startswith("core"))
        return float(np.interp(leaves_w, *found.to_ac()))

    def train() -> Timeline:
        return node.run(resnet, 8, epochs=200.0, batch=512.0)

    def burn() -> Timeline:
        return node.run("burn", 8, seconds=1800.0, host_memory=0.87)

    steps = [*node.find_stages(resnet, ["epoch"], "step_s"), *node.find_stages(resnet, tested, "step_s", FORWARD)]
    intensities = node.find_stages(resnet, ["epoch", *tested], "intensity")
    hosts = [Place(host, "idle_w"), Place(host, "max_w", offset=100.0)]
    fans = [Place(node.table["cooling"], "fan_max_w")]
    return [
        Fit("2.2 kW at rest without fans", 2200.0, compute_idle, "host.idle_w", hosts, 500.0, 2000.0),
        Fit("bnl.burn.median_w", 8430.0, lambda: compute_median(burn()), "cooling.fan_max_w", fans, 200.0, 2000.0),
        Fit("bnl.resnet-512.duration_h", 26 * 3600.0, lambda: compute_duration(train()), "step_s", steps, 1.0, 10.0),
        Fit("bnl.resnet-512.median_w", 4680.0, lambda: compute_median(train()), "intensity", intensities, 0.1, 1.0),
    ]  # fmt: skip


def list_gdansk_fits() -> list[Fit]:
    """Return the fits of gdansk-rtx6000: both parts of an epoch's time, the slowdown, the host."""
    node, workload = NodeTable("gdansk-rtx6000"), "xception-birds"
    host, slowdown = node.table["host"], node.table["gpu"][0]["slowdown"]

    def train(gpus: int, cap_w: float | None = None) -> tuple[float, float]:
        run = node.run(workload, gpus, cap_w)
        epochs = [(span.start_ns, span.end_ns) for span in run.spans if span.name == "epoch"]
        return sum(b - a for a, b in epochs) / NS, sum(run.energy("node.ac", a, b) for a, b in epochs)

    def compare(which: int) -> float:
        return train(8, 170.0)[which] / train(8)[which]

    rates, seconds = (node.find_stages(workload, ["epoch"], key) for key in ("rate", "seconds"))
    hosts = [Place(host, "idle_w"), Place(host, "max_w")]
    return [
        Fit("gdansk.time_s.260w.1 less .8", 338.1, lambda: train(1)[0] - train(8)[0], "rate", rates, 10.0, 1000.0),
        Fit("gdansk.time_s.260w.8", 85.6, lambda: train(8)[0], "seconds", seconds, 0.1, 17.0),
        Fit("gdansk.ratio.170w.time", 1.0938, lambda: compare(0), "slowdown a", [Place(slowdown, 0)], 0.0, 0.2),
        Fit("gdansk.ratio.170w.energy", 0.7559, lambda: compare(1), "host.idle_w", hosts, 0.0, 1000.0),
    ]  # fmt: skip


def list_horeka_fits() -> list[Fit]:
    """Return the fits of horeka-green: a sleeping package, and the epochs of both workloads on GPU and CPUs."""
    node = NodeTable("horeka-green")

    def compute_idle() -> float:
        found = node.describe().node
        return 4 * found.gpus[0].idle_w + 2 * (found.cpu.idle_w + found.dram.idle_w) + found.host.idle_w

    asleep = [Place(node.table["cpu"], "idle_w")]
    fits = [Fit("horeka.jupyter_idle_node_w", 300.0, compute_idle, "cpu.idle_w", asleep, 0.0, 100.0)]
    for workload, row, device, time_s, mean_w, forward in (
        ("lstm-load", "horeka.energy.train.gpu", "gpu", 1022.0, 665.8, FORWARD),
        ("lstm-load", "horeka.energy.train.cpu-mix", "cpu", 7537.0, 644.4, LSTM_CPU_FORWARD),
        ("vgg19bn-xray", "horeka.health.train.gpu", "gpu", 911.0, 835.6, FORWARD),
        ("vgg19bn-xray", "horeka.health.train.cpu-mix", "cpu", 167983.0, 651.7, VGG_CPU_FORWARD),
    ):
        amounts = {"epochs": 30.0, "copies": 0.0} if workload == "lstm-load" else {"epochs": 25.0, "repeats": 0.0}

        def train(workload: str = workload, device: str = device, amounts: dict[str, float] = amounts) -> Timeline:
            return node.run(workload, int(device == "gpu"), **amounts)

        tested = ("validation", "predict", "test")
        rates = [*node.find_stages(workload, ["epoch"], "rate", on=device),
                 *node.find_stages(workload, tested, "rate", 1 / forward, device)]  # fmt: skip
        loads = node.find_stages(workload, ["epoch", *tested], "cpu", on=device)
        label = f"{workload} {device}"
        fits += [
            Fit(f"{row}.time_s", time_s, lambda t=train: compute_duration(t()), f"{label} rate", rates, 0.5, 1e5),
            Fit(f"{row}.mean_w", mean_w, lambda t=train: compute_mean(t()), f"{label} cpu", loads, 0.0, 1.0),
        ]  # fmt: skip
    return fits


FITS = {"bnl-h100": list_bnl_fits, "gdansk-rtx6000": list_gdansk_fits, "horeka-green": list_horeka_fits}


def main() -> int:
    """Print all solved numbers; return 1 where a node file has another."""
    print(f"{'node':15} {'number':22} {'in file':>10} {'solved':>10}  fitted to")
    differ = False
    for name, list_fits in FITS.items():
        for fit in list_fits():
            filed = [place.read() for place in fit.places]
            value = fit.solve()
            wrong = any(abs(value - one) > AGREEMENT * abs(one) for one in filed)
            differ |= wrong
            mark = "  <- differs" if wrong else ""
            print(f"{name:15} {fit.number:22} {filed[0]:10.6g} {value:10.6g}  {fit.figure}{mark}")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
