"""Work the CPUs for a few seconds in named phases, so that there is something to measure: `cpu_load.py [SECONDS]`."""

import sys
import time

import numpy as np

import joulelab

epoch_s = float(sys.argv[1] if len(sys.argv) > 1 else 4.5) / 3

with joulelab.phase("set-up"):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 700, 700))
    time.sleep(0.5)  # as if data were loaded

for epoch in range(3):
    with joulelab.phase("epoch", n=epoch):
        end = time.monotonic() + epoch_s
        while time.monotonic() < end - 0.2:
            a = a @ b
            a /= np.abs(a).max()
            joulelab.work(products=1)
        time.sleep(0.2)  # as if a checkpoint were saved

print("checksum", round(float(a.sum()), 3))
