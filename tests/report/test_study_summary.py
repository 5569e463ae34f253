"""What is said of a study whose runs were on a twin that `joulelab twin` served."""

from __future__ import annotations

import shutil
from pathlib import Path

from joulelab.report.study_summary import name_study_twins
from joulelab.study.folder import open_study

CAPS = Path(__file__).parents[2] / "examples" / "studies" / "caps"


def test_a_study_on_a_served_twin_is_simulated(tmp_path: Path) -> None:
    assert name_study_twins(open_study(CAPS)) == "simulated: node served by joulelab twin"
    copy = shutil.copytree(CAPS, tmp_path / "caps")
    for run in copy.glob("cells/*/r*/*/run.json"):
        run.write_text("{")
    assert name_study_twins(open_study(copy)) == ""  # what cannot be read is told by whoever reads it
    shutil.rmtree(copy / "cells")
    assert name_study_twins(open_study(copy)) == ""
