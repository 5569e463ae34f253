"""Write into docs/not-tried-on-hardware.md what each kind of meter was tried on: `python -m tests.docs.tried`.

The rows come from the line TRIED of each module of `joulelab.instruments`.
"""

from __future__ import annotations

import re
from pathlib import Path

from joulelab import instruments
from joulelab.run.config.meter_entries import find_meter_module

PAGE = Path(__file__).parents[2] / "docs" / "not-tried-on-hardware.md"
TABLE = re.compile(r"(?<=<!-- meters -->\n).*?(?=<!-- end of meters -->)", re.DOTALL)


def write_table() -> str:
    """Return the table, a row for each kind of meter."""
    rows = [(name, find_meter_module(name)) for name in [*instruments.list_meters(), *instruments.list_archives()]]
    lines = [f"| `{name}` | {module.SUMMARY} | {module.TRIED} |" for name, module in rows]
    return "\n".join(["| meter | reads | tried on |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: write_table(), PAGE.read_text()))
