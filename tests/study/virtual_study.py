"""A small node, and a small study of it, for tests of virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NODE = """
name = "tiny"
packages = 1
[[gpu]]
model = "rtx6000"
count = 2
[host]
idle_w = 100
max_w = 120
[cooling]
fan_idle_w = 20
fan_max_w = 90
[supply]
rated_w = 1500
[workloads.train]
epochs = 2
parameters = { images = 3000 }
time_scatter = 0.02
power_scatter = 0.02
[[workloads.train.stages]]
name = "load"
seconds = 4
cpu = 0.5
[[workloads.train.stages]]
name = "epoch"
each = "epoch"
samples = "images"
rate = 150
seconds = 1
busy = 0.9
intensity = 0.9
flutter = 0.05
flutter_s = 1.5
"""
METERS = """
[meters.wall]
family = "analyzer"
gain_sd = 0.0004
options = { voltage_v = 300, current_a = 5 }
flaws = { period_s = 0.1, window_s = 0.1, noise_w = 0.5 }
[meters.nvml]
family = "nvml"
ask_s = 0.1
gain_sd = 0.02
"""
STUDY = """
name = "tiny"
repeats = {repeats}
seed = 7
idle = "5s"
{top}
[workloads.train]
command = "train"
[knobs]
cap = {caps}
gpus = [1, 2]
"""


def write(folder: Path, *, meters: str = METERS, top: str = "", repeats: int = 2, caps: str = "[150, 260]") -> Path:
    """Write `node.toml` and `study.toml`; return the study."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.toml").write_text(NODE + meters)
    (folder / "study.toml").write_text(STUDY.format(repeats=repeats, top=top, caps=caps))
    return folder / "study.toml"
