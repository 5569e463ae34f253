"""Make nodes whose power is known: idle, busy from second 5 to 15, idle."""

from __future__ import annotations

import numpy as np
from tests.analysis.folders import counter, gpu, power

T = np.arange(0, 20, 0.1)
START, END = 5.0, 15.0


def busy(idle_w, load_w):
    """Return the energy of a load that is idle outside of the workload, and its power as meters show it: 0.1 s late."""
    seconds = np.clip(T, START, END) - START
    late = T - 0.1
    return idle_w * T + (load_w - idle_w) * seconds, np.where((late > START - 0.01) & (late < END), load_w, idle_w)


def node(folder, *, gpus=2, ac=None, dc=None, psys=None):
    """Add GPUs at 400 W, two packages at 100 W with cores inside, DRAM at 20 W, and what is asked for."""
    for k in range(gpus):
        folder.add("nvml", gpu(k), T, *busy(50.0, 400.0))
    for k in (0, 1):
        top = "psys" if psys else None
        folder.add("rapl", counter(f"cpu:{k}", top), T, busy(30.0, 100.0)[0])
        folder.add("rapl", counter(f"core:{k}", f"cpu:{k}"), T, busy(10.0, 70.0)[0])
        folder.add("rapl", counter(f"dram:{k}", top), T, busy(5.0, 20.0)[0])
    for name, watts in (("node.ac", ac), ("node.dc", dc)):
        if watts:
            folder.add("bmc", power(name), T, busy(200.0, watts)[1])
    if psys:
        folder.add("rapl", counter("psys"), T, busy(90.0, psys)[0])
    return folder
