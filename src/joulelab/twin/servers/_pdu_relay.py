"""Pass what snmpd asks of its `pass_persist` program on to the twin's server, over a Unix socket; run as a script.

It needs no package, so that it starts at once, and ends with either side.
"""

import socket
import sys


def main() -> None:
    """Copy lines both ways: a question is followed by as many lines of answer as the server's first line says."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"\0{sys.argv[1]}")
        server = link.makefile("rw")
        for line in sys.stdin:
            server.write(line)
            server.flush()
            count = server.readline()
            if not count:
                return
            for _ in range(int(count)):
                sys.stdout.write(server.readline())
            sys.stdout.flush()


if __name__ == "__main__":
    main()
