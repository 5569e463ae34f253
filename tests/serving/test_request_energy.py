"""The energy of a run is divided among its requests, and written with intervals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joulelab.analysis.analyse import find_span, load_joined
from joulelab.core.errors import ConfigError
from joulelab.report.messages import word_note
from joulelab.report.terminal import write_blocks
from joulelab.serving.messages import MESSAGES
from joulelab.serving.request_energy import _choose_curve, attribute_run, divide_energy, measure_scope, write_requests
from joulelab.serving.request_records import list_requests
from joulelab.serving.serving_tables import lay_out_requests, list_attribution_notes, list_request_facts
from joulelab.store.run_reader import open_run
from joulelab.twin.llm_run import LlmScenario, write_llm_run


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Write one run of a simulated server."""
    return write_llm_run(tmp_path_factory.mktemp("runs"), LlmScenario(rates=(2.0, 4.0), requests=80, seed=5))


@pytest.fixture(scope="module")
def found(served):
    with open_run(served.run) as run:
        return attribute_run(run, by="team")


def test_requests_and_tokens_are_near_the_truth(served, found):
    truth = {one.id: one.find_energy_j() for one in served.requests}
    inside = [abs(one.energy.value - truth[one.request.id]) <= one.energy.expanded for one in found.requests]
    assert len(inside) == len(truth)
    assert sum(inside) / len(inside) >= 0.9
    assert abs(found.decode_token.value - served.find_decode_j()) <= found.decode_token.expanded
    assert abs(found.prefill_token.value - served.find_prefill_j()) <= found.prefill_token.expanded
    assert found.idle_source == "before"


def test_all_parts_add_up_to_the_measured_energy(found):
    whole = sum(one.energy.value for one in found.requests) + found.idle.value + found.unassigned_j
    assert whole == pytest.approx(found.measured.value, rel=1e-9)
    assert sum(one.energy.value for one in found.labels.values()) == pytest.approx(
        sum(o.energy.value for o in found.requests)
    )
    assert set(found.labels) == {"a", "b", "c"}
    team = found.labels["a"]
    # The meter's gain does not shrink in a sum.
    (gain,) = (u for source, u in team.energy.terms.items() if source.startswith("gain:"))
    assert gain / team.energy.value == pytest.approx(
        max(found.measured.budget()["gain"] / found.measured.value, 0), rel=1e-6
    )


def test_idle_is_divided_on_request(served, found):
    with open_run(served.run) as run:
        full = attribute_run(run, with_idle=True)
    assert full.with_idle
    assert full.median_j > found.median_j
    assert sum(one.energy.value for one in full.requests) + full.unassigned_j == pytest.approx(
        full.measured.value, rel=1e-9
    )


def test_each_request_is_written_as_a_row(found, tmp_path):
    write_requests(found, tmp_path / "r.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [one.request.id for one in found.requests]
    assert rows[0]["energy_j"] == pytest.approx(rows[0]["prefill_j"] + rows[0]["decode_j"] + rows[0]["idle_j"])
    import duckdb

    write_requests(found, tmp_path / "r.parquet")
    total, count = duckdb.sql(f"SELECT sum(energy_j), count(*) FROM '{tmp_path / 'r.parquet'}'").fetchall()[0]
    assert (total, count) == (pytest.approx(sum(row["energy_j"] for row in rows)), len(rows))
    with pytest.raises(ConfigError):
        write_requests(found, tmp_path / "r.txt")


def test_the_answer_fits_into_80_columns(found):
    for by in (None, "team"):
        text = write_blocks(lay_out_requests(found, by), 80)
        assert max(map(len, text.splitlines())) <= 80
    labels = [label for label, _ in list_request_facts(found)]
    assert labels == ["requests", "median", "prefill", "decode", "idle"]
    assert all(word_note(note, "serving") != f"{note.code}: {{}}" for note in list_attribution_notes(found))
    assert all(len(entry) == 3 for entry in MESSAGES.values())


def test_runs_without_requests_scope_or_label_are_refused(served):
    with open_run(served.run) as run:
        for options, code in (({"scope": "wall"}, "config.unknown-scope"), ({"by": "user"}, "config.unknown-label")):
            with pytest.raises(ConfigError) as caught:
                attribute_run(run, **options)
            assert caught.value.code == code


def test_a_server_without_usage_is_divided_by_time(served):
    with open_run(served.run) as run:
        measured, requests = measure_scope(run), list_requests(run.marks())
    silent = [replace(request, prompt_tokens=None, output_tokens=None) for request in requests]
    found = divide_energy(measured, silent, by="team")
    assert found.by_time
    assert {(one.prompt_tokens, one.output_tokens) for one in found.labels.values()} == {(None, None)}
    assert [note.code for note in found.notes] == ["no-usage"]
    assert (found.prefill_token, found.requests[0].energy.expanded) == (None, None)
    whole = sum(one.energy.value for one in found.requests) + found.idle.value + found.unassigned_j
    assert whole == pytest.approx(found.measured.value, rel=1e-9)


def test_a_faster_meter_shows_when_energy_was_used_if_the_best_one_is_slow(served):
    with open_run(served.run) as run:
        span = find_span(run, list(run.events()))
        scope = next(one for one in load_joined(run, span).scopes if one.scope == "gpu:0")
    fast, a_ns, b_ns = scope.best, span.start_ns, span.end_ns
    slow = replace(fast, stream=replace(fast.stream, period_s=1.0))
    assert _choose_curve(replace(scope, channels=(fast, slow)), a_ns, b_ns) == (fast, 1.0)
    channel, factor = _choose_curve(replace(scope, channels=(slow, fast)), a_ns, b_ns)
    assert channel is fast
    assert factor == pytest.approx(1.0)
    frozen = replace(fast, frozen=True)
    assert _choose_curve(replace(scope, channels=(slow, frozen)), a_ns, b_ns)[0] is slow
