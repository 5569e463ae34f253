"""Keep CPUs or GPUs busy: a control whose load is known, `python -m joulelab.workloads.burn seconds=10 processes=4`.

Each process fills its memory with products of two matrices until the time is over, and holds them against the first:
what computes wrongly under load is found. All wait until the last is ready, so that they burn together.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.run.workload_registry import merge_parameters, read_pairs
from joulelab.study.program import Program, ProgramStage
from joulelab.workloads.burning.settings import check_installed, has_gpu, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUMMARY = "matrix products on every GPU or CPU for a given time, results checked; alone or with stress-ng"
STUDY = "BNL 2024"
PARAMETERS = {
    "seconds": ("10", "how long to burn"),
    "processes": ("0", "how many processes, each on one GPU or core; 0: as many as there are to use"),
    "size": ("auto", "rows and columns of the matrices; auto: 8192 on GPUs, 512 on CPUs"),
    "device": ("auto", "cuda, cpu, or auto: the GPUs if there are any"),
    "backend": ("auto", "torch, numpy, or auto: torch on GPUs, numpy on CPUs"),
    "dtype": ("auto", "fp16, bf16, tf32, fp32 or fp64; auto: on GPUs what tensor cores take, numpy fp64, else fp32"),
    "memory": ("auto", "memory that a process fills: 90% (of the free memory), 64MB; auto: 90% on GPUs, 64MB on CPUs"),
    "check": ("0.1", "share of the products that are compared, others in each round"),
    "host": ("no", "stress-ng: load the host with it at the same time"),
    "tasks": ("256", "tasks of 3D matrices that stress-ng runs"),
    "host_memory": ("0", "share of the host's memory that those tasks fill; 0: as little as stress-ng does by default"),
}
PRESETS = {
    "paper": {"device": "cuda", "seconds": "600"},
    "node": {"device": "cuda", "seconds": "600", "host": "stress-ng", "tasks": "256", "host_memory": "0.87"},
    "smoke": {
        "backend": "torch", "device": "cpu", "processes": "1", "size": "1024", "memory": "64MB", "seconds": "4",
    },
    "smoke-node": {
        "device": "cpu", "processes": "1", "size": "256", "seconds": "3", "host": "stress-ng", "tasks": "2",
    },
}  # fmt: skip
PROGRAM = Program(
    (
        ProgramStage(name="set-up"),
        ProgramStage(name="burn", when="!host_memory", seconds="seconds"),
        ProgramStage(name="burn", part="host", when="host_memory", seconds="seconds"),
    ),
    epochs=0.0,
)
NOTES = (
    "The paper ran gpu-burn -tc: fp32 matrices of size 8192 which tensor cores multiply, their input cut to fp16.",
    "torch has no such mode. tf32 stands for it from Ampere on (fp32 in memory too), fp16 before; or give dtype.",
    "gpu-burn compares every product within a tolerance; here a rotating share is compared bit by bit (check=1: all).",
    "preset paper is the GPUs alone. node is the paper's node control: 256 tasks of matrix-3d, 1.3 of 1.5 TB (0.87).",
    "The paper does not state how long it burned: 600 s is our choice.",
    "stress-ng runs at the lowest priority: its tasks take all that is left, and do not starve what feeds the GPUs.",
    "Not tried on a GPU: the same code ran on CPUs (backend=torch device=cpu).",
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    check_installed(read(parameters, gpu=has_gpu(os.environ)))
    given = [f"{key}={parameters[key]}" for key in PARAMETERS]
    return [sys.executable, "-m", "joulelab.workloads.burn", *given]


def main(words: Sequence[str]) -> int:
    """Burn, and return 0; 1 where a product was wrong or a process failed, 2 for wrong words."""
    try:
        given = merge_parameters("burn", PARAMETERS, read_pairs(words, where="burn"), PRESETS)
        asked = read(given, gpu=has_gpu(os.environ))
        check_installed(asked)
        from joulelab.workloads.burning.control import burn

        return burn(asked, given)
    except JoulelabError as error:
        sys.stderr.write(f"joulelab: burn: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
