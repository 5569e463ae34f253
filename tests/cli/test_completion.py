"""Completion in bash, as docs/how-to/shell-completion.md sets it up: commands, subcommands, options, files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "shell-completion.md"
# What bash does when Tab is pressed, for the words of a line.
PRESS_TAB = """
press_tab() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _joulelab_completion joulelab "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$((COMP_CWORD - 1))]}"
  echo "${COMPREPLY[*]}"
}
"""


def press_tab(home: Path, *lines: str) -> list[str]:
    """Set bash up as the page says, and return what each line completes to."""
    block = re.search(r"\*\*bash\*\*\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    typed = [f"press_tab {line}" for line in lines]
    script = "\n".join([block[1], f"source {home}/.bashrc", PRESS_TAB, *typed, "complete -p joulelab"])
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "HOME": str(home), "PATH": beside}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.splitlines()


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    *completed, setting = press_tab(tmp_path, "joulelab swe", "joulelab plan coo", "joulelab run --na")
    assert completed == ["sweep", "cooling", "--name"]
    assert "-o default" in setting  # file names, where joulelab offers nothing
