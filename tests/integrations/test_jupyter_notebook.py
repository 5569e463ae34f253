"""A notebook with magics, run by `joulelab run` in a real kernel on a simulated node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from tests.workloads.books import LIMIT_S, book, code, environment, write

pytestmark = pytest.mark.system

JOULELAB = [sys.executable, "-c", "from joulelab.cli import main; main()"]
TWIN = ("twin", "--gpus", "2", "--gpu-model", "v100", "--profile", "constant:level=0.5", "--")
TRAIN = """\
%%joulelab training
# train
import asyncio, joulelab
print("printed")
with joulelab.phase("epoch", n=1):
    for _ in range(20):
        await asyncio.sleep(0.02)
        joulelab.work(samples=2)
6 * 7
"""


@dataclass
class Recorded:
    """Hold what a recorded run of a notebook told, and the outputs of its cells by their numbers."""

    result: dict[str, Any]
    outputs: list[list[dict[str, Any]]]

    @property
    def top(self) -> list[dict[str, Any]]:
        return [p for p in self.result["phases"] if p["depth"] == 0]

    def phase(self, title: str) -> dict[str, Any]:
        return next(p for p in self.result["phases"] if p["title"] == title)

    def display(self, number: int) -> tuple[str, str]:
        """Return what a cell displayed, as text and as HTML."""
        data = next(o["data"] for o in self.outputs[number - 1] if o["output_type"] == "display_data")
        return "".join(data["text/plain"]), "".join(data["text/html"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if shutil.which("cc") is None:
        pytest.skip("the twin's NVML library is built with cc, which is not here")
    folder = tmp_path_factory.mktemp("magics")
    cells = code("%load_ext joulelab"), code(TRAIN), code("%%joulelab\n1 / 0", "raises-exception"), code("%joulelab")
    write(folder / "a.ipynb", book(*cells))
    environ = environment(folder, JOULELAB_RUNS=str(folder / "runs"), OMP_NUM_THREADS="1")
    words = [*JOULELAB, *TWIN, *JOULELAB, "run", "--json", "a.ipynb", "--pause", "300ms", "--out", "done.ipynb"]
    done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    said, _, rest = done.stdout.partition("\n")
    assert "this notebook is recorded by joulelab run" in said
    assert rest.startswith("printed\n{")
    copy = json.loads((folder / "done.ipynb").read_text())
    return Recorded(json.loads(rest.partition("\n")[2]), [c["outputs"] for c in copy["cells"]])


def test_cells_are_marked_once_and_have_energy(recorded: Recorded) -> None:
    between = "between cells"
    cells = ["cell 1", between, "cell 2", between, "cell 3", between, "cell 4"]
    assert [p["title"] for p in recorded.top] == ["kernel start", *cells, "kernel stop"]
    inner = [(p["title"], p["depth"]) for p in recorded.result["phases"] if p["depth"]]
    assert inner == [("training", 1), ("epoch 1", 2), ("table", 1), ("measure", 1), ("table", 1), ("table", 1)]
    assert recorded.phase("training")["work"] == {"samples": 40}
    assert (
        recorded.phase("cell 2")["energy"]["measured"]["value"]
        > recorded.phase("training")["energy"]["measured"]["value"]
    )
    for one, other in pairwise(recorded.top):
        assert one["start_s"] + one["duration_s"] == pytest.approx(other["start_s"], abs=1e-6)


def test_a_measured_cell_shows_a_table_and_a_picture_below_what_it_shows_itself(recorded: Recorded) -> None:
    stream, value, table = recorded.outputs[1]
    assert stream["text"] == ["printed\n"]
    assert value["data"]["text/plain"] == ["42"]
    assert table["output_type"] == "display_data"
    text, page = recorded.display(2)
    assert text.startswith("joulelab   training · ")
    assert re.search(r"^energy +(?:[\d.]+ ± [\d.]+ J .*, [\d,.]+ W on average|too short .*)$", text, re.MULTILINE)
    for said in ("2 GPUs", "2 CPUs", "40 samples"):
        assert said in text
        assert said in page
    assert re.search(r"^power +[▁-█]+  ", text, re.MULTILINE)
    assert "<svg " in page
    assert "<script" not in page


def test_a_cell_that_fails_fails_as_ever_and_is_measured(recorded: Recorded) -> None:
    error, table = recorded.outputs[2]
    assert error["ename"] == "ZeroDivisionError"
    assert "----> 2 1 / 0" in re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["traceback"]))
    assert "".join(table["data"]["text/plain"]).startswith("joulelab   this cell · ")


def test_the_total_is_that_of_all_cells_and_of_the_time_between_them(recorded: Recorded) -> None:
    text, page = recorded.display(4)
    assert "between cells" in page
    row = r"^(\S.*?\S)  .*? [mµ]?s +(?:([\d.]+) ± [\d.]+ +[\d,.]+|too short +-)$"
    rows = {m[1]: float(m[2] or 0.0) for m in re.finditer(row, text, re.MULTILINE)}
    cells = ["cell 1", "cell 2 · train", "cell 3", "cell 4 (runs)"]
    assert list(rows) == ["kernel start", *cells, "between cells", "total"]
    assert sum(rows.values()) - rows["total"] == pytest.approx(rows["total"], rel=0.02)
    # What is recorded afterwards does not change what the cells used.
    before = [p["energy"]["measured"]["value"] for p in recorded.top[:-2]]
    assert rows["total"] * 1e3 == pytest.approx(sum(before), rel=0.03)
    waited = [p for p in recorded.top[:-2] if p["title"] == "between cells"]
    assert rows["between cells"] * 1e3 == pytest.approx(sum(p["energy"]["measured"]["value"] for p in waited), rel=0.05)
    assert all(p["duration_s"] >= 0.3 for p in waited)
    assert re.search(r"^idle +\S+ W between cells: [\d.]+ % of the energy, [\d.]+ % of the time", text, re.MULTILINE)
