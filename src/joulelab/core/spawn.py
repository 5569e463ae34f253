"""Help to start other processes of joulelab: they find the same joulelab, and closed standard streams do no harm."""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SITE = ("site-packages", "dist-packages")


def add_import_path(environ: Mapping[str, str], here: str = __file__) -> dict[str, str]:
    """Return an environment in which a new process imports the same joulelab as this one."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(here))))  # noqa: PTH100, PTH120
    if os.path.basename(root) in SITE:  # noqa: PTH119
        return dict(environ)
    paths = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**environ, "PYTHONPATH": os.pathsep.join([*paths, root])}


def move_above_standard(fd: int) -> int:
    """Return a descriptor above 2: if 0, 1 or 2 were closed, a new file would take their place, so it is moved."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
