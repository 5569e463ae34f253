"""Make small files and open them as archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.instruments.file import open_archive

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.core.spec import Fetched

T0 = 1_714_564_800 * NS  # 2024-05-01T12:00:00Z
POWER = [{"column": "watts", "scope": "node.ac", "unit": "W"}]


def open_text(tmp_path: Path, text: str | bytes, **config: Any) -> Any:
    """Open a file with a time `t` and a power `watts`."""
    return guess_text(tmp_path, text, **{"time": {"column": "t", "format": "unix"}, "columns": POWER, **config})


def guess_text(tmp_path: Path, text: str | bytes, **config: Any) -> Any:
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return open_archive({"path": str(path), **config})


def fetch_all(archive: Any) -> list[Fetched]:
    return list(archive.fetch(*archive.interval))


def fetch_one(archive: Any) -> Fetched:
    (found,) = fetch_all(archive)
    return found


def list_values(fetched: Fetched, channel: int = 0) -> list[float]:
    return [row[2][channel] for row in fetched.rows]


def list_seconds(fetched: Fetched) -> list[float]:
    return [(row[0] - T0) / NS for row in fetched.rows]


def list_events(found: list[Fetched], kind: str) -> list[dict[str, Any]]:
    return [dict(e) for f in found for e in f.events if e["event"] == kind]


def list_problems(archive: Any) -> str:
    return "\n".join(str(e["what"]) for e in list_events(fetch_all(archive), "problem"))


def at(second: float) -> str:
    return f"{T0 / NS + second:.3f}"


def make_log(*cells: object, head: str = "t,watts") -> str:
    return head + "\n" + "".join(f"{at(k)},{c}\n" for k, c in enumerate(cells))
