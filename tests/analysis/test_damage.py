from __future__ import annotations

from pathlib import Path

from tests.rows import every_row

from joulelab.analysis.checks import check_damage, is_needed_for_totals
from joulelab.store.sample_tables import FileProblem

RUN = Path("/runs/20260101-000000-0000")


@every_row(
    ("name", "needed"),
    [
        ("node1/nvml.power.parquet", True),
        ("node1/rapl.energy.0.journal", True),
        ("node1/pdu", True),
        ("node1", True),
        ("node1/events.0.jsonl", True),
        ("node1/nvml.state.parquet", False),
        ("node1/bmc.cooling.parquet", False),
        ("node1/host.machine.parquet", False),
        ("node1/host", False),
        ("node1/marks/1-1.jsonl", False),
        ("node1/marks", False),
    ],
)
def test_totals_need_samples_of_energy_and_events(name: str, needed: bool) -> None:
    assert is_needed_for_totals(FileProblem(RUN / name, "cannot be read", lost=True)) is needed
    assert not is_needed_for_totals(FileProblem(RUN / name, "lines are damaged"))


def test_every_damaged_file_fails_a_check_without_a_path_of_this_machine() -> None:
    power, events = RUN / "node1" / "nvml.power.parquet", RUN / "node1" / "events.0.jsonl"
    journal = RUN / "node1" / "rapl.energy.0.journal"
    checks = list(
        check_damage(
            [
                FileProblem(
                    power, f"{power.parent}: nvml.power.parquet cannot be read (no end of '{power}')", lost=True
                ),
                FileProblem(journal, f"{journal.parent}: journal {journal.name} cannot be read (no header)", lost=True),
                FileProblem(events, "lines are damaged and left out"),
                FileProblem(RUN / "node1" / "marks", "it is missing", lost=True),
            ]
        )
    )
    assert {(c.name, c.status) for c in checks} == {("damaged", "failed")}
    assert [(c.scope, c.texts["what"], c.texts.get("withheld")) for c in checks] == [
        ("node1/nvml.power.parquet", "it cannot be read (no end of)", "total"),
        ("node1/rapl.energy.0.journal", "it cannot be read (no header)", "total"),
        ("node1/events.0.jsonl", "lines are damaged and left out", None),
        ("node1/marks", "it is missing", "energy per work"),
    ]
