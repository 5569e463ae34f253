"""Listen on a free port and do something with each connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def listening(act: Callable[[socket.socket], object]) -> Iterator[int]:
    """Give the port. A client that goes before it was served is nothing to speak of; connections stay open."""
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    clients.append(server.accept()[0])
                except OSError:
                    return
                with contextlib.suppress(OSError):
                    act(clients[-1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in clients:
                client.close()
