"""Work the CPUs for a few seconds in named phases, so that there is something to measure."""

import joulelab
import numpy as np

with joulelab.phase("set-up"):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 700, 700))

for epoch in range(3):
    with joulelab.phase("epoch", n=epoch):
        for _ in range(40):
            a = a @ b
            a /= np.abs(a).max()
            joulelab.work(products=1)

print("checksum", round(float(a.sum()), 3))
