"""An archive of a test's own: it is asked after a run, never read while one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Fetched

SUMMARY = "a pretended log"
CONFIG = {"label": "its name", "feeds": "what it covers", "path": "where it is"}
DEFAULT = False


class Log:
    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:
        return []

    def close(self) -> None:
        pass


def open_archive(config: Mapping[str, Any]) -> Log:
    if config["path"] == "gone":
        raise Unavailable("there is no such log", why=str(config["label"]), next="look elsewhere")
    return Log()
