"""What is refused of a notebook in a study file, before it is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.study.test_file_problems import said

if TYPE_CHECKING:
    from pathlib import Path


def test_a_notebook_is_looked_into(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "epochs = 1", "outputs": []}
    data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (tmp_path / "train.ipynb").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "broken.ipynb").write_text("{", encoding="utf-8")
    text = """\
[workloads.w]
notebook = "train.ipynb"
knobs = { epohcs = [1] }
parameters = { epocks = 3 }
[workloads.x]
notebook = "broken.ipynb"
[workloads.y]
notebook = "trian.ipynb"
"""
    told = said(tmp_path, text).splitlines()
    assert told[0].startswith("3: train.ipynb: there is no parameter 'epohcs'")
    assert told[1].startswith("4: train.ipynb: there is no parameter 'epocks'")
    assert "did you mean 'epochs'" in told[1]
    assert told[2].startswith("6: broken.ipynb: this is no notebook")
    assert told[3].startswith("8: there is no notebook trian.ipynb")
    assert "did you mean 'train.ipynb'?" in told[3]


def test_phases_that_are_cells_of_a_notebook_are_there_and_run(tmp_path: Path) -> None:
    texts = ["x = 1", "", "y", *("z" * 6)]
    cells = [{"cell_type": "code", "metadata": {}, "source": text, "outputs": []} for text in texts]
    cells.insert(1, {"cell_type": "markdown", "metadata": {}, "source": "text"})
    data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (tmp_path / "a.ipynb").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "none.ipynb").write_text(json.dumps({**data, "cells": []}), encoding="utf-8")
    (tmp_path / "broken.ipynb").write_text("[" * 100_000, encoding="utf-8")
    text = """\
[workloads.a]
notebook = "a.ipynb"
phases = ["cell 1", "cell 3", "train", "cell 2", "cell 10", "cell 0"]
[workloads.b]
notebook = "none.ipynb"
phases = "cell 1"
[workloads.c]
notebook = "broken.ipynb"
phases = "cell 1"
[workloads.d]
command = "true"
phases = "cell 99"
"""
    some = "name one of cell 1, cell 3, cell 4, cell 5, cell 6, ... cell 9, counted over all code cells"
    told = said(tmp_path, text).splitlines()
    assert told[:4] == [
        f"3: there is no phase 'cell 2' (nothing of it is run); {some}",
        f"3: there is no phase 'cell 10' (a.ipynb has 9 code cells); {some}",
        f"3: there is no phase 'cell 0' (a.ipynb has 9 code cells); {some}",
        "6: there is no phase 'cell 1' (none.ipynb has 0 code cells); leave it out",
    ]
    assert told[4].startswith("8: broken.ipynb: this is no notebook")
    assert len(told) == 5
