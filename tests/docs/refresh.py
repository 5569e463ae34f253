"""Write the reference from the code, and the output of commands into the documents."""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs import reference
from tests.docs.test_docs import OUTPUT, PAGES, run_command
from tests.docs.tutorials import TUTORIALS, play, refreshed

if TYPE_CHECKING:
    import re


def refresh_block(block: re.Match[str]) -> str:
    """Return a block with what its command prints now."""
    return f"<!-- output: {block[1]} -->\n```\n{run_command(block[1]).rstrip()}\n```\n<!-- end -->"


def write_reference() -> None:
    """Write the pages of the reference from the code."""
    for path, write_page in reference.PAGES.items():
        path.write_text(write_page())


def write_outputs() -> None:
    """Run the commands of the documents, those of tutorials on twins, and write what they print into the pages."""
    for page in PAGES:
        text = page.read_text()
        if OUTPUT.search(text):
            page.write_text(OUTPUT.sub(refresh_block, text))
    for page in TUTORIALS:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(refreshed(page.read_text(), partial(play, folder=Path(folder))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.docs.refresh", description=__doc__)
    parser.add_argument("part", nargs="?", choices=["reference"], help="write only the reference; runs no command")
    part = parser.parse_args().part
    write_reference()
    if part is None:
        write_outputs()
