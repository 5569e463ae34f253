"""Hold branch coverage: core, analysis and control whole, 90 % overall; says which lines are missing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

WHOLE = ("core", "analysis", "control")
OVERALL = 90.0


def main() -> int:
    """Return 0 where the floors hold."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", str(report)], check=True)
        data = json.loads(report.read_text())
    bad = []
    for name, file in data["files"].items():
        layer = Path(name).parts[Path(name).parts.index("joulelab") + 1]
        missing = file["missing_lines"] + file.get("missing_branches", [])
        if layer in WHOLE and missing:
            bad.append(f"{name}: not covered: {missing}")
    overall = data["totals"]["percent_covered"]
    if overall < OVERALL:
        bad.append(f"overall {overall:.1f} % is below {OVERALL:.0f} %")
    print("\n".join(bad) or f"coverage {overall:.1f} %; {', '.join(WHOLE)} whole")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
