"""Start the processes of `burn`, one for each CPU or GPU, talk with them, and end them with us."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.workloads.burning.settings import CUDA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.workloads.burning.settings import Settings

FINISH_S = 5.0
# Libraries of linear algebra would start threads of their own: the processes are the threads here.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
Worker = subprocess.Popen[bytes]


def count(asked: Settings) -> int:
    """Return how many processes there will be. Raises ConfigError where there are fewer GPUs."""
    if asked.device != CUDA:
        return asked.processes or len(os.sched_getaffinity(0))
    import torch

    there = int(torch.cuda.device_count())
    if there < max(asked.processes, 1):
        why = f"torch {torch.__version__} finds {there}"
        what = "there is no GPU" if not there else f"there are no {asked.processes} GPUs"
        raise ConfigError(what, why=why, next="give device=cpu, or look with `joulelab meters`")
    return asked.processes or there


@contextlib.contextmanager
def workers(number: int, words: Sequence[str]) -> Iterator[list[Worker]]:
    """Start processes that wait to be told; they end with this block, and when we are gone."""
    environ = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
    with contextlib.ExitStack() as stack:
        started = []
        for k in range(number):
            argv = [sys.executable, "-m", "joulelab.workloads.burning.burn_worker", str(k), *words]
            # The others are ranks, so that phases and steps are those of the first. It is what we are.
            rank = {"LOCAL_RANK": str(k), "RANK": str(k)} if k else {}
            worker = subprocess.Popen(argv, env=environ | rank, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.enter_context(worker)
            stack.callback(worker.kill)  # comes first; one that has finished does not mind
            started.append(worker)
        yield started
        for worker in started:
            _finish(worker)


def _finish(worker: Worker) -> None:
    """Let a process that has said everything write its last marks, and end."""
    assert worker.stdin is not None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        worker.stdin.close()
        worker.wait(FINISH_S)


def heard(crew: Sequence[Worker], key: str, wait_s: float) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return what the processes say next under `key`, and why some say nothing."""
    until, told, reasons = time.monotonic() + wait_s, [], []
    for worker in crew:
        said = _line(worker, until - time.monotonic())
        if key in said:
            told.append(said[key])
        else:
            reasons.append(str(said.get("failed", "one process ended or sent no result")))
    return told, list(dict.fromkeys(reasons))


def tell(crew: Sequence[Worker], text: str) -> None:
    """Tell every process a line."""
    for worker in crew:
        assert worker.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and will say nothing
            worker.stdin.write(f"{text}\n".encode())
            worker.stdin.flush()


def _line(worker: Worker, wait_s: float) -> dict[str, Any]:
    assert worker.stdout is not None
    if not select.select([worker.stdout], (), (), max(wait_s, 0.0))[0]:
        return {}
    try:
        said = json.loads(worker.stdout.readline())
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
