"""Answer what snmpd's `pass_persist` asks: one name, or the next one, from a tree of readings."""

from __future__ import annotations

import bisect
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from joulelab.twin.servers._pdu_bench import Tree


class Feeder:
    """Serve a tree on a Unix socket, for `_pdu_relay`, from the beginning of the block to its end.

    The socket has a name and no file, so that a killed server leaves nothing behind.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self.name = name
        self._tree = tree
        self.names = sorted(tree)
        self._socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._socket.bind(f"\0{self.name}")
        self._socket.listen()
        threading.Thread(target=self._accept, name="pdu-feeder", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return  # closed: the block has ended
            threading.Thread(target=self._serve, args=(link,), name="pdu-feed", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        """Answer line by line; each answer begins with how many lines it has."""
        with link, link.makefile("rw") as lines:
            order: list[str] = []
            for line in lines:
                order.append(line.strip())
                answer = self.answer(order)
                if answer is not None:
                    order = []
                with contextlib.suppress(BrokenPipeError):
                    lines.write("".join(f"{part}\n" for part in (len(answer or ()), *(answer or ()))))
                    lines.flush()

    def answer(self, order: list[str]) -> list[str] | None:
        """Return the lines that answer an order, None while it is not whole."""
        match order:
            case ["PING"]:
                return ["PONG"]
            case ["get", oid]:
                return self._shown(_parsed(oid))
            case ["getnext", oid]:
                at = bisect.bisect_right(self.names, _parsed(oid))
                return self._shown(self.names[at]) if at < len(self.names) else ["NONE"]
            case ["set", _, _]:
                return ["not-writable"]
            case ["get" | "getnext"] | ["set"] | ["set", _]:
                return None
            case _:
                return ["NONE"]

    def _shown(self, oid: tuple[int, ...]) -> list[str]:
        read = self._tree.get(oid)
        if read is None:
            return ["NONE"]
        kind, value = read()
        return ["." + ".".join(map(str, oid)), kind, str(value)]


def _parsed(oid: str) -> tuple[int, ...]:
    return tuple(int(part) for part in oid.strip(".").split(".") if part.isdecimal())
