"""Policies beside each other: what is refused, and how sure figures and their differences are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.plan_queue import CURVE, busy_stream

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.queue.caps import FREE, Step
from joulelab.plan.queue.jobs import Job, Stream
from joulelab.plan.queue.outcome import Comparison, compare, draws_for
from joulelab.plan.queue.policies import BACKFILL, ENERGY, FIRST_COME, FIT, NAMEPLATE, WAITS
from joulelab.plan.queue.site import Site
from joulelab.plan.rates.rate import Label

SITE = Site(8, 40_000.0, 2_200.0, rated_w=10_200.0)
POWER_ONLY = (Step(400.0, Quantity(1.08), Quantity(0.7), 0.7), FREE)


def stream(count: int = 30) -> Stream:
    made = busy_stream(count, 3)
    return replace(
        made, jobs=tuple(replace(job, submit_s=job.submit_s / 3, nodes=min(job.nodes, 2)) for job in made.jobs)
    )


def compared(**more: object) -> Comparison:
    given: dict[str, object] = {"draws": 20} | more
    return compare(stream(), given.pop("site", SITE), given.pop("curves", {"made": CURVE}), **given)  # type: ignore[arg-type]


class Hours:
    """A rate that is twice as high in every other hour; `label.u_rel` as given."""

    def __init__(self, u_rel: float | None = None) -> None:
        self.label = Label("average", "g/kWh", "made", u_rel=u_rel)

    def changes(self, since_s: float, until_s: float) -> np.ndarray:
        return np.arange(np.floor(since_s / 3600) + 1, np.ceil(until_s / 3600)) * 3600.0

    def means(self, edges_s: np.ndarray) -> np.ndarray:
        return np.where((edges_s[:-1] // 3600) % 2, 400.0, 200.0)


def test_a_gain_that_all_jobs_share_is_in_the_energy_and_not_in_the_change() -> None:
    found = compared(curves={"made": POWER_ONLY}, site=replace(SITE, unused="off"))
    first, own = found.outcomes[0], found.outcome(ENERGY)
    assert own is not None
    energy, change = own.figure("energy_j"), own.change("energy_j", first)
    assert change is not None
    assert energy.u / energy.value == pytest.approx(0.005, rel=0.35)  # as drawn 20 times
    assert change.value == pytest.approx(1.08 * 0.7 - 1, abs=1e-9)
    assert change.u < 1e-9
    assert own.change("makespan_s", own) == Quantity(0.0)
    assert found.draws == 20


def test_what_is_not_known_of_caps_is_in_the_times() -> None:
    found = compared(draws=6)
    for policy, drawn in ((FIRST_COME, False), (WAITS, False), (FIT, True), (ENERGY, True)):
        own = found.outcome(policy)
        assert own is not None
        assert bool(own.figure("makespan_s").terms) is drawn
        assert bool(own.figure("energy_j").terms)
    assert compared(draws=6).outcomes[4].drawn == found.outcomes[4].drawn
    assert compared(seed=1, draws=6).outcomes[4].drawn != found.outcomes[4].drawn


def test_policies_go_on_by_what_is_believed_and_the_budget_may_be_exceeded() -> None:
    found = compared(draws=25)
    for policy in (WAITS, BACKFILL, FIT, ENERGY):
        own = found.outcome(policy)
        assert own is not None
        assert own.drawn[0]["over_highest_s"] == 0
        share, most_w = own.exceeded("highest") or (0.0, 0.0)
        assert 0 < share < 1
        assert 0 < most_w < 4_000
    roomy = compared(draws=25, site=replace(SITE, margin=0.1)).outcome(BACKFILL)
    assert roomy is not None
    assert roomy.exceeded("highest") == (0.0, 0.0)
    first = found.outcome(FIRST_COME)
    assert first is not None
    assert first.drawn[0]["over_highest_s"] > 0


def test_unknown_accuracies_print_no_interval() -> None:
    made = stream()
    unknown = replace(made, jobs=tuple(replace(j, node_w=Quantity(j.node_w.value, known=False)) for j in made.jobs))
    found = compare(unknown, SITE, {"made": CURVE}, draws=3)
    assert [o.figure("energy_j").expanded for o in found.outcomes if not o.refused] == [None] * 6
    assert all(o.figure("wait_s").known for o in found.outcomes if not o.refused)
    vague = (Step(400.0, Quantity(1.05, known=False), Quantity(0.7), 0.7), FREE)
    found = compare(made, SITE, {"made": vague}, draws=3)
    assert [o.figure("makespan_s").known for o in found.outcomes] == [True, True, True, True, False, False]


def test_nothing_is_drawn_where_everything_is_exact() -> None:
    made = stream()
    exact = replace(made, jobs=tuple(replace(j, node_w=Quantity(j.node_w.value)) for j in made.jobs))
    found = compare(exact, SITE, {"made": POWER_ONLY})
    assert found.draws == 0
    assert found.outcomes[0].exceeded("mean") is None
    assert found.outcomes[5].figure("energy_j").expanded == 0


def test_what_is_vague_and_not_drawn_has_no_interval() -> None:
    found = compared(draws=0)
    assert found.draws == 0
    assert found.outcomes[0].figure("energy_j").expanded is None
    assert found.outcomes[0].figure("wait_s").expanded == 0
    assert found.outcomes[4].figure("wait_s").expanded is None


def test_a_job_that_never_fits_refuses_the_policy_and_not_the_others() -> None:
    large = Job("large", 0.0, 8, 100.0, Quantity(5_500.0), 6_000.0, "made", None, "jobs.csv:7")
    made = Stream((large,), "one job")
    found = compare(made, SITE, {"made": POWER_ONLY})
    told = {o.policy: o.refused for o in found.outcomes}
    assert told[FIRST_COME] == told[FIT] == told[ENERGY] == ""
    assert "job large can never start: its 8 nodes take 30400 W beside idle ones, and there are 22400 W" in told[WAITS]
    assert "64000 W" in told[NAMEPLATE]
    assert found.outcome(WAITS) is None
    assert found.outcomes[4].change("energy_j", found.outcomes[1]) is None
    nameless = compare(made, replace(SITE, rated_w=None), {"made": POWER_ONLY})
    assert "nameplate of job large's nodes is not known" in nameless.outcomes[2].refused
    assert "rated_j" not in nameless.outcomes[0].names


def test_jobs_and_sites_that_cannot_be_are_refused() -> None:
    made = Stream((Job("j", 0.0, 9, 1.0, Quantity(5e3), 6e3, where="jobs.csv:3"),), "one job")
    with pytest.raises(ConfigError, match=r"jobs.csv:3: job j needs 9 nodes of 8"):
        compare(made, SITE, {})
    with pytest.raises(ConfigError, match="used up before any job starts"):
        compare(stream(), Site(8, 17_000.0, 2_200.0), {})
    with pytest.raises(ConfigError, match="no nodes"):
        compare(stream(), Site(0, 17_000.0, 2_200.0), {})
    bare = Stream((replace(made.jobs[0], nodes=1, highest_w=None),), "one job")
    with pytest.raises(ConfigError, match="highest power of job j is not known"):
        compare(bare, SITE, {})
    assert compare(bare, replace(SITE, count="mean"), {}).uncapped == 1


def test_rates_follow_the_power_hour_by_hour() -> None:
    # 1 node of 2: an hour at 6.2 kW + 2.2 kW idle, at 200 g/kWh, then half an hour at 400 g.
    made = Stream((Job("j", 0.0, 1, 5_400.0, Quantity(6_200.0), 7e3),), "one job")
    site = Site(2, 40_000.0, 2_200.0, pue=1.5)
    found = compare(made, site, {}, rates={"carbon_g": Hours()})
    assert found.outcomes[0].figure("carbon_g").value == pytest.approx(1.5 * 8.4 * (200 + 0.5 * 400))
    two = Stream((made.jobs[0], replace(made.jobs[0], id="k", submit_s=1_800.0)), "two jobs")
    found = compare(two, site, {}, rates={"carbon_g": Hours()})
    grams = 0.5 * 8.4 * 200 + 0.5 * 12.4 * 200 + 0.5 * 12.4 * 400 + 0.5 * 8.4 * 400
    assert found.outcomes[0].figure("carbon_g").value == pytest.approx(1.5 * grams)
    found = compare(made, site, {}, rates={"carbon_g": Hours(0.05)}, draws=150, policies=(FIRST_COME, WAITS))
    told = found.outcomes[0].figure("carbon_g")
    assert told.u / told.value == pytest.approx(0.05, rel=0.2)
    change = found.outcomes[1].change("carbon_g", found.outcomes[0])
    assert change == Quantity(0.0)


def test_how_often_is_drawn_goes_with_the_number_of_jobs() -> None:
    assert [draws_for(n) for n in (0, 10, 1_000, 100_000)] == [100, 100, 50, 10]
