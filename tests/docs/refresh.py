"""Write the reference from the code, and the output of commands into the documents: `python -m tests.docs.refresh`.

`python -m tests.docs.refresh reference` writes the reference only.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs import reference
from tests.docs.test_docs import OUTPUT, PAGES, run_command
from tests.docs.tutorials import TUTORIALS, play, refreshed

if TYPE_CHECKING:
    import re


def fresh(block: re.Match[str]) -> str:
    """Return a block with what its command prints now."""
    return f"<!-- output: {block[1]} -->\n```\n{run_command(block[1]).rstrip()}\n```\n<!-- end -->"


for path, write_page in reference.PAGES.items():
    path.write_text(write_page())
if sys.argv[1:] == ["reference"]:
    sys.exit()

for page in PAGES:
    text = page.read_text()
    if OUTPUT.search(text):
        page.write_text(OUTPUT.sub(fresh, text))

for page in TUTORIALS:
    with tempfile.TemporaryDirectory() as folder:
        page.write_text(refreshed(page.read_text(), lambda command, folder=folder: play(command, Path(folder))))
