"""Identities of cells: results on disk are found by them, so they never change. All are of commit c623264."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.rows import every_row

from joulelab.study.knobs import Knob
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.study_file import read_study

FROZEN = Path(__file__).with_name("frozen")
KEYS = json.loads((FROZEN / "cell_keys.json").read_text())
SWEEPS = {
    "no knob": ((), {}),
    "caps in W": (("python", "train.py"), {"cap": "100:260:40"}),
    "caps in percent": (("python", "train.py"), {"cap": "60%:100%:10%"}),
    "clocks": (("python", "train.py"), {"clock": "900:1980:120"}),
    "gpus and a parameter": (("torchrun", "--nproc={gpus}", "t.py", "{lr}"), {"gpus": "1,2,4", "lr": "0.1,1e-3,007"}),
    "texts and braces": (("sh", "-c", "echo {{x}} ${HOME} {x}"), {"x": "a,b c,é"}),
    "every own knob": (("w",), {"cap": "150W", "cpu_cap": "80", "clock": "1200MHz", "gpus": "2"}),
    "bytes that are no UTF-8": (("w", "\udcff{n}"), {"n": "1:3:0.5"}),
}


@pytest.mark.parametrize("name", ["bnl", "gdansk", "horeka"])
def test_cells_of_study_files_keep_their_identities(name: str) -> None:
    groups: dict[str, list[str]] = {}
    for cell in read_study(FROZEN / f"{name}.toml").plan.cells:
        groups.setdefault(f"{cell.workload.name} on {cell.workload.node_type}", []).append(cell.key)
    found = {
        group: [len(keys), hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16]] for group, keys in groups.items()
    }
    assert found == KEYS[name]


@every_row("name", SWEEPS)
def test_cells_of_a_sweep_keep_their_identities(name: str) -> None:
    command, knobs = SWEEPS[name]
    made = make_cells(Workload(command or ("w",)), [Knob.parse(knob, text) for knob, text in knobs.items()])
    assert [cell.key for cell in made] == KEYS["sweeps"][name]
