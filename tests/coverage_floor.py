"""Hold branch coverage: core, analysis and control whole, 90 % overall.

Run as `python tests/coverage_floor.py FILE`, coverage's report in JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WHOLE = ("core", "analysis", "control")
OVERALL = 90.0


def main() -> int:
    """Return 0 where the floors hold."""
    data = json.loads(Path(sys.argv[1]).read_text())
    bad = []
    for name, file in data["files"].items():
        missing = missed(file)
        layer = Path(name).parts[Path(name).parts.index("joulelab") + 1]
        if missing and layer in WHOLE:
            bad.append(f"{name}: not covered: {missing}")
    overall = data["totals"]["percent_covered"]
    if overall < OVERALL:
        bad.append(f"overall {overall:.1f} % is below {OVERALL:.0f} %")
    print("\n".join(bad) or f"coverage {overall:.1f} %; {', '.join(WHOLE)} whole")
    return 1 if bad else 0


def missed(file: dict[str, Any]) -> str:
    """Return lines, and branches between lines that are covered, as text."""
    lines = file["missing_lines"]
    first = [n for n in lines if n - 1 not in lines]
    last = [n for n in lines if n + 1 not in lines]
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True)]
    branches = [f"{a}->{b}" for a, b in file.get("missing_branches", []) if a not in lines and b not in lines]
    return ", ".join([*spans, *branches])


if __name__ == "__main__":
    sys.exit(main())
