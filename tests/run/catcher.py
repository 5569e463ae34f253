"""A workload that writes down every signal it gets, a line each, until it gets SIGUSR2 or five minutes have passed."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    done = False

    def caught(number: int, _frame: object) -> None:
        nonlocal done
        os.write(fd, f"{signal.Signals(number).name}\n".encode())
        done = done or number == signal.SIGUSR2

    for number in (1, 2, 3, 10, 12, 14, 15, 28):
        signal.signal(number, caught)
    os.write(fd, b"ready\n")
    until = time.monotonic() + 300
    while not done and time.monotonic() < until:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
