from __future__ import annotations

from joulelab.study.knobs import ALWAYS, Condition, read_values


def test_all_that_a_condition_names_must_hold() -> None:
    caps, batches = read_values("cap", "100,200", ""), read_values("batch", "32,64", "")
    knobs = {"cap": caps[0], "batch": batches[1]}
    assert ALWAYS.is_met("train", "gpu", {})
    assert Condition(frozenset({"train", "predict"})).is_met("train", "gpu", knobs)
    assert not Condition(frozenset({"predict"})).is_met("train", "gpu", knobs)
    assert Condition(nodes=frozenset({"gpu"})).is_met("train", "gpu", knobs)
    assert not Condition(nodes=frozenset({"cpu"})).is_met("train", "gpu", knobs)
    both = Condition(knobs={"cap": frozenset({"100", "200"}), "batch": frozenset({"64"})})
    assert both.is_met("train", "gpu", knobs)
    assert not both.is_met("train", "gpu", {**knobs, "batch": batches[0]})


def test_a_cell_without_the_knob_is_not_meant() -> None:
    condition = Condition(knobs={"cap": frozenset({"100"})})
    assert not condition.is_met("train", "gpu", {})
    assert not condition.is_met("train", "gpu", {"cap": read_values("cap", "100%", "")[0]})
    assert condition.is_met("train", "gpu", {"cap": read_values("cap", "100.0W", "")[0]})
