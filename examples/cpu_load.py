"""Work the CPUs for a few seconds in named phases, so that there is something to measure."""

import time

import numpy as np

import joulelab

with joulelab.phase("set-up"):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 700, 700))
    time.sleep(0.5)  # as if data were loaded

for epoch in range(3):
    with joulelab.phase("epoch", n=epoch):
        for _ in range(120):
            a = a @ b
            a /= np.abs(a).max()
            joulelab.work(products=1)
        time.sleep(0.2)  # as if a checkpoint were saved

print("checksum", round(float(a.sum()), 3))
