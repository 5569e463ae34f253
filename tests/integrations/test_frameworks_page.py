"""The examples of docs/how-to/frameworks.md, as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"
CODE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.campaign
@pytest.mark.no_cover
@pytest.mark.parametrize("code", CODE, ids=["huggingface", "lightning", "keras"])
def test_an_example_runs(tmp_path: Path, code: str) -> None:
    environ = dict(os.environ)
    environ |= {"JOULELAB_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^joulelab +train\b", done.stdout, re.MULTILINE), done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    (marks,) = run.glob("*/marks/*.jsonl")
    assert '"name":"epoch","n":2' in marks.read_text()
