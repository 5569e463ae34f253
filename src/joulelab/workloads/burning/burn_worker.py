"""Be one process of `burn`: `python -m joulelab.workloads.burning.burn_worker NUMBER key=value...`, in JSON lines.

It says when its memory is filled, waits for the seconds on its standard input, multiplies, and says what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import JoulelabError
from joulelab.run.workload_registry import read_pairs
from joulelab.workloads.burning.engines import BYTES, OTHERS, open_engine
from joulelab.workloads.burning.settings import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.workloads.burning.engines import Engine

ROUND_S = 0.2


@dataclass(slots=True)
class Rounds:
    """Multiply in rounds that last about ROUND_S, and compare a `share` of the products: others in each round."""

    engine: Engine
    share: float
    now: Callable[[], float] = time.monotonic
    length: int = 1
    products: int = 0
    compared: int = 0
    wrong: int = 0

    def burn(self) -> int:
        """Multiply one round, compare, and wait for it once; return how many products it had."""
        began, count, length = self.now(), len(self.engine.buffers), self.length
        slots = [(self.products + k) % count for k in range(length)]
        for slot in slots:
            self.engine.multiply(slot)
        checked = min(length, max(1, round(self.share * length))) if self.share else 0
        for k in range(checked):
            self.engine.compare(slots[(self.compared + k) % length])
        self.products += length
        self.compared += checked
        self.wrong = self.engine.wrong()
        # No round is more than twice the last: the first of all is slow, and one that was quick may have been luck.
        each = max(self.now() - began, 1e-6) / length
        self.length = max(1, min(count, 2 * length, int(ROUND_S / each)))
        return length


def work(number: int, words: Sequence[str]) -> int:
    """Burn as one process; return the exit code."""
    import joulelab

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a terminal reaches who started us, who ends us
    parent = os.getppid()
    asked = read(read_pairs(words, where="burn"), gpu=False)
    try:
        engine = open_engine(asked, number)
        _warm_up(engine)
    except Exception as error:  # noqa: BLE001 whatever a driver or an allocator says is told to who started us
        _say({"failed": str(error) if isinstance(error, JoulelabError) else f"{type(error).__name__}: {error}"})
        return 1
    used = (len(engine.buffers) + OTHERS) * asked.size**2 * BYTES[engine.dtype]
    _say({"ready": {"device": engine.device, "dtype": engine.dtype, "memory_bytes": used}})
    text = sys.stdin.readline()
    if not text.strip():
        return 0
    rounds = Rounds(engine, asked.check)
    until, product = time.monotonic() + float(text), 2 * asked.size**3
    with joulelab.phase("burn"):
        while not rounds.products or (time.monotonic() < until and os.getppid() == parent):
            done = rounds.burn()
            joulelab.step(products=done, FLOP=done * product)
    _say({"done": {"products": rounds.products, "compared": rounds.compared, "wrong": rounds.wrong}})
    return 0


def _warm_up(engine: Engine) -> None:
    """Let libraries choose their way and take their own memory before it counts."""
    engine.multiply(0)
    engine.compare(0)
    engine.wrong()


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(work(int(sys.argv[1]), sys.argv[2:]))
