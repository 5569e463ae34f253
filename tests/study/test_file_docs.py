"""The page on study files: its examples are read, and it names every key."""

from __future__ import annotations

import re
from pathlib import Path

from joulelab.core.toml_reading import describe_keys
from joulelab.study.study_file import NodeKeys, StudyKeys, WorkloadKeys, read_study

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "study.md").read_text(encoding="utf-8")


def test_the_examples_are_study_files(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(# (\S+\.toml)\n.*?)```", PAGE, re.DOTALL)
    cells = {}
    for text, name in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
        cells[name] = len(read_study(tmp_path / name).plan.cells)
    assert cells == {"first.toml": 2, "knobs.toml": 32, "nodes.toml": 3}
    assert PAGE.count("```toml") == len(blocks)


def test_the_tables_name_every_key() -> None:
    for heading, keys in (
        ("## The top of the file", describe_keys(StudyKeys)),
        ("## Workloads", describe_keys(WorkloadKeys)),
        ("## Node types", describe_keys(NodeKeys)),
    ):
        section = PAGE.partition(heading)[2].partition("\n## ")[0]
        rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(keys), heading
