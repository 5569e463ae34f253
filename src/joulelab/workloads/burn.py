"""Keep the CPUs busy: a control whose load is known, `python -m joulelab.workloads.burn seconds=10 processes=4`.

Each process multiplies matrices until the time is over, and holds every product against the first: CPUs that compute
wrongly under load are found. It says when it is ready, and begins when it is told to, so that all burn together.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.workloads import number, pairs, settings, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SUMMARY = "matrix products on the CPUs for a given time, every product checked"
PARAMETERS = {
    "seconds": ("10", "how long to burn"),
    "processes": ("0", "how many processes, each on one core; 0: as many as there are CPUs to use"),
    "size": ("512", "rows and columns of the matrices"),
}
WORKER = "--worker"
READY_S, LATE_S, FINISH_S = 60.0, 30.0, 5.0
# Libraries of linear algebra would start threads of their own: the processes are the threads here.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a value out of range."""
    _read(parameters)
    given = [f"{key}={parameters[key]}" for key in PARAMETERS]
    return [sys.executable, "-m", "joulelab.workloads.burn", *given]


def _read(parameters: Mapping[str, str]) -> tuple[float, int, int]:
    """Return seconds, processes and size. Raises ConfigError."""
    seconds = number(parameters, "seconds", least=0.01, most=86400 * 7)
    processes = whole(parameters, "processes", least=0, most=4096) or len(os.sched_getaffinity(0))
    return seconds, processes, whole(parameters, "size", least=2, most=32768)


def main(words: Sequence[str]) -> int:
    """Burn, and return 0; 1 where a product was wrong or a process failed, 2 for wrong words."""
    try:
        seconds, processes, size = _read(settings("burn", PARAMETERS, pairs(words, where="burn")))
    except JoulelabError as error:
        sys.stderr.write(f"joulelab: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    joulelab = _joulelab()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with _workers(processes, size) as workers:
        with joulelab.phase("set-up"):
            ready = [_line(worker, READY_S) for worker in workers]
        if any(line != "ready" for line in ready):
            sys.stderr.write("joulelab: burn: not all processes could be started\n")
            return 1
        with joulelab.phase("burn"):
            for worker in workers:
                _tell(worker, f"{seconds}\n")
            until = time.monotonic() + seconds + LATE_S
            done = [_line(worker, until - time.monotonic()) for worker in workers]
    return _told(done)


def _told(done: Sequence[str]) -> int:
    """Print what was done; return the exit code."""
    counts = [line.split() for line in done if line.startswith("done ")]
    products, wrong = (sum(int(words[k]) for words in counts) for k in (1, 2))
    sys.stdout.write(f"products: {products}\nwrong: {wrong}\n")
    if len(counts) < len(done):
        sys.stderr.write(f"joulelab: burn: {len(done) - len(counts)} of {len(done)} processes failed\n")
    return int(wrong > 0 or len(counts) < len(done))


@contextlib.contextmanager
def _workers(count: int, size: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that wait to be told; they end with this block, and when we are gone."""
    environ = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
    argv = [sys.executable, "-m", "joulelab.workloads.burn", WORKER, str(size)]
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(count):
            worker = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.enter_context(worker)
            stack.callback(worker.kill)  # comes first; one that has finished does not mind
            workers.append(worker)
        yield workers
        for worker in workers:
            _finish(worker)


def _finish(worker: subprocess.Popen[bytes]) -> None:
    """Let a process that has said everything write its last marks, and end."""
    assert worker.stdin is not None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        worker.stdin.close()
        worker.wait(FINISH_S)


def _line(worker: subprocess.Popen[bytes], wait_s: float) -> str:
    """Return what a process says next, empty where it says nothing in time."""
    assert worker.stdout is not None
    if not select.select([worker.stdout], (), (), max(wait_s, 0.0))[0]:
        return ""
    return worker.stdout.readline().decode(errors="replace").strip()


def _tell(worker: subprocess.Popen[bytes], text: str) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError):  # it has ended, and will say nothing
        worker.stdin.write(text.encode())
        worker.stdin.flush()


def work(size: int) -> int:
    """Be one of the processes: say ready, wait for the seconds, multiply, say how many products and how many wrong."""
    import numpy as np

    joulelab, parent = _joulelab(), os.getppid()
    a, b = np.random.default_rng(0).random((2, size, size))
    right, out = a @ b, np.empty((size, size))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    text = sys.stdin.readline()
    if not text.strip():
        return 0
    until = time.monotonic() + float(text)
    products = wrong = 0
    while time.monotonic() < until and os.getppid() == parent:
        np.matmul(a, b, out=out)
        wrong += not np.array_equal(out, right)
        products += 1
        joulelab.work(products=1)
    sys.stdout.write(f"done {products} {wrong}\n")
    sys.stdout.flush()
    return 0


def _joulelab() -> Any:
    import joulelab

    return joulelab


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(work(int(given[1])) if given[:1] == [WORKER] else main(given))
