"""Forward the questions of snmpd's `pass_persist` to the twin's server over a Unix socket; run as a script.

It imports no package, so it starts at once; it ends when either side ends.
"""

import socket
import sys


def main() -> None:
    """Copy lines both ways: the server's first line is the number of lines of its answer."""
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
