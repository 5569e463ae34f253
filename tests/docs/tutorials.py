"""Play what a tutorial types, and hold what it shows against what is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted([*(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "quick-start").glob("*.md")])
# A command with its output, or a script of which only the exit code is checked, since its figures differ each time.
BLOCK = re.compile(r"```console\n\$ ([^\n]+)\n(.*?)```\n|```sh\n(.*?)```\n", re.DOTALL | re.MULTILINE)
LEFT_OUT = "..."


@dataclass(frozen=True)
class Typed:
    """Hold a command of a tutorial and what the page says that it prints."""

    command: str
    shown: str

    def agrees(self, printed: str) -> bool:
        """Return whether it prints what is shown, where a line of dots stands for any lines."""
        parts = [re.escape(part) for part in re.split(r"(?m)^\.\.\.\n", self.shown.rstrip() + "\n")]
        return re.fullmatch(r"(?:.*\n)*?".join(parts), printed.rstrip() + "\n") is not None


def typed_in(text: str) -> list[Typed]:
    """Return what a page types, in order; the output of a script is left out."""
    return [Typed(block[1] or block[3], block[2] or f"{LEFT_OUT}\n") for block in BLOCK.finditer(text)]


def play(command: str, folder: Path) -> str:
    """Run a command as a reader would, 80 columns wide, with a clone's studies and examples in the folder."""
    for name in ("studies", "examples"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PATH": beside}
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def refreshed(text: str, printed: Callable[[str], str]) -> str:
    """Return a page with what its commands print now; where lines are left out, only what is shown is looked for."""

    def fresh(block: re.Match[str]) -> str:
        now = printed(block[1] or block[3])
        if block[3]:
            return block[0]
        kept = block[2] if Typed(block[1], block[2]).agrees(now) and block[2] != f"{LEFT_OUT}\n" else now
        return f"```console\n$ {block[1]}\n{kept}```\n"

    return BLOCK.sub(fresh, text)
