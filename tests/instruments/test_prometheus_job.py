"""A Slurm job is found in what agents showed: nodes, begin and end, and how well these are known."""

from __future__ import annotations

from typing import Any

import pytest
from tests.codes import raises_code

from joulelab.core.clock import NS
from joulelab.instruments.prometheus.client import Sample, Series
from joulelab.instruments.prometheus.jobs import USUAL_LAG_S, find_job
from joulelab.instruments.prometheus.settings import PrometheusSettings, read_settings

BEGIN, END, SCRAPE = 100_000.0, 102_000.0, 15.0
DAY = 86_400


class Server:
    """Answer as a server that scraped some nodes every 15 s, each at its own time."""

    def __init__(self, offsets: dict[str, float], *, build: bool = True, until: float = END + 600) -> None:
        self.offsets, self.build, self.until = offsets, build, until
        self.stays: dict[str, list[tuple[float, float]]] = {node: [(BEGIN, END)] for node in offsets}
        self.lost: set[tuple[str, float]] = set()
        self.late: dict[str, float] = {}  # how much later an agent knows of what comes and goes
        self.told: dict[str, float] = {}  # and how late it says that may be
        self.since: dict[str, float] = {}  # from when and up to when a node is scraped
        self.up_to: dict[str, float] = {}

    def scrapes(self, node: str) -> list[float]:
        first = int((BEGIN - 7200) / SCRAPE)
        times = [self.offsets[node] + SCRAPE * k for k in range(first, int(self.until / SCRAPE) + 1)]
        since, until = self.since.get(node, 0.0), self.up_to.get(node, self.until)
        return [t for t in times if since <= t <= until and (node, t) not in self.lost]

    def series(self, node: str, times: list[float], value: float = 1.0, **labels: str) -> tuple[Any, list[Sample]]:
        key = tuple(sorted({"instance": f"{node}:9797", **labels}.items()))
        return key, [Sample(round(t * NS), value) for t in times]

    def fetch_raw(self, selector: str, start_ns: int, end_ns: int) -> Series:
        found: Series = {}
        for node in self.offsets:
            times = [t for t in self.scrapes(node) if start_ns <= t * NS <= end_ns]
            if selector.startswith("joulelab_slurm_job_info"):
                times = [t for t in times if any(a <= t - self.late.get(node, 0.0) <= b for a, b in self.stays[node])]
                key, samples = self.series(node, times, slurm_job="7", user="ada", account="physics", partition=node)
            elif selector.startswith("joulelab_slurm_job_lag_seconds"):
                key, samples = self.series(node, times if node in self.told else [], self.told.get(node, 0.0))
            elif not self.build:
                continue
            else:
                key, samples = self.series(node, times)
            if samples:
                found[key] = samples
        return found

    def list_steps(self, expression: str, start_ns: int, end_ns: int, step_ms: int) -> list[int]:
        assert expression.startswith('count(count_over_time(joulelab_slurm_job_info{slurm_job="7"}')
        times = sorted(
            {s.t_ns for samples in self.fetch_raw("joulelab_slurm_job_info", 0, 1 << 62).values() for s in samples}
        )
        steps = sorted({-(-t // (step_ms * 10**6)) * step_ms * 10**6 for t in times})
        return [t for t in steps if start_ns <= t <= end_ns]

    def list_metrics(self) -> list[str]:
        return ["joulelab_slurm_job_info", "up"]


def asked(**more: Any) -> PrometheusSettings:
    return read_settings({"label": "p", "address": "http://m:1", "preset": "joulelab", "job": 7, **more})


def found(server: Server):
    return find_job(server, asked(), 0, round((END + DAY) * NS))  # type: ignore[arg-type]


def test_one_node_knows_begin_and_end_to_half_a_scrape():
    job = found(Server({"n1": 5.0}))
    # Seen at 100,010 for the first time, not at 99,995; at 101,990 for the last, not at 102,005.
    assert job.start_ns / NS == pytest.approx((99_995 - USUAL_LAG_S + 100_010) / 2)
    assert job.end_ns / NS == pytest.approx((101_990 + 102_005 - USUAL_LAG_S) / 2)
    assert job.unsure_s == pytest.approx(((15 + USUAL_LAG_S) / 2,) * 2)
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0]
    assert abs(job.end_ns / NS - END) <= job.unsure_s[1]
    assert (job.nodes, job.scrape_s, job.doubts) == (("n1",), 15.0, ())
    assert job.labels == {"slurm_job": "7", "user": "ada", "account": "physics", "partition": "n1"}


def test_many_nodes_know_them_better():
    job = found(Server({f"n{k}": k * 0.5 for k in range(1, 30)}))
    assert max(job.unsure_s) == pytest.approx((0.5 + USUAL_LAG_S) / 2, abs=0.3)
    assert not job.doubts
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0]
    assert abs(job.end_ns / NS - END) <= job.unsure_s[1]
    assert job.nodes[:3] == ("n1", "n2", "n3"), "in the order that people count"
    assert "partition" not in job.labels, "nodes differ in it"
    assert "29 nodes (n1, n2, ..., n29)" in job.list_remarks()[0]


def test_agents_know_of_it_a_little_later():
    """Each after another time: the first that shows it and the last that does not bound the begin."""
    server = Server({f"n{k}": k * 0.25 for k in range(1, 60)})
    server.late = {node: 2.5 * ((7 * k) % 11) / 10 for k, node in enumerate(server.offsets)}
    job = found(server)
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0] < USUAL_LAG_S / 2
    assert abs(job.end_ns / NS - END) <= job.unsure_s[1] < USUAL_LAG_S / 2
    assert not job.doubts


def test_a_lost_scrape_is_no_scrape_without_the_job():
    server = Server({"n1": 5.0})
    server.lost = {("n1", 99_995.0)}
    job = found(server)
    assert job.unsure_s[0] == pytest.approx((30 + USUAL_LAG_S) / 2)


def test_agents_without_times_of_scrapes_leave_begin_and_end_unknown():
    job = found(Server({"n1": 5.0}, build=False))
    assert job.unsure_s == (None, None)
    assert [(d.status, d.side) for d in job.doubts] == [("failed", "begin"), ("failed", "end")]


def test_nodes_that_come_later_or_go_before_are_told():
    server = Server({"n1": 5.0, "n2": 7.0, "n3": 9.0})
    server.stays["n2"] = [(BEGIN + 300, END)]
    server.stays["n3"] = [(BEGIN, END - 300)]
    job = found(server)
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0]
    assert abs(job.end_ns / NS - END) <= job.unsure_s[1]
    used = "the energy includes that time"
    assert tuple(d.what for d in job.doubts) == (
        f"n2 showed it only later than the others (up to 302 s); {used}",
        f"n3 showed it no longer before its end (up to 298 s); {used}",
    )
    assert [(d.status, d.side) for d in job.doubts] == [("warning", "begin"), ("warning", "end")]


def test_of_two_executions_the_last():
    server = Server({"n1": 5.0})
    server.stays["n1"] = [(BEGIN - 5000, BEGIN - 4000), (BEGIN, END)]
    job = found(server)
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0]
    assert tuple(d.what for d in job.doubts) == ("it ran 2 times; this is the last, give --from and --to for another",)


def test_one_that_may_still_run():
    server = Server({"n1": 5.0}, until=END - 100)
    job = found(server)
    assert "it may still run" in job.doubts[0].what
    assert END - 130 < job.end_ns / NS <= END - 100
    assert (job.unsure_s[1], job.doubts[0].status, job.doubts[0].side) == (None, "failed", "end")
    assert "begin ± 9 s, end unknown" in job.list_remarks()[0]
    now = find_job(server, asked(), 0, round((END - 90) * NS))  # type: ignore[arg-type]
    assert [(d.status, d.next) for d in now.doubts] == [("warning", "")], "it was there a moment ago"


def test_one_that_began_before_the_telemetry_did():
    """Nobody saw a node without it: its begin is not known, and nothing is claimed of it."""
    server = Server({"n1": 5.0, "n2": 7.0})
    server.since = dict.fromkeys(server.offsets, BEGIN + 200)
    job = found(server)
    assert job.start_ns / NS == 100_205
    assert job.unsure_s[0] is None
    assert job.unsure_s[1] == pytest.approx((13 + USUAL_LAG_S) / 2)
    assert "(begin unknown, end ± 8 s, scraped every 15 s)" in job.list_remarks()[0]
    (event,) = job.list_events()
    assert (event["event"], event["status"], event["side"]) == ("interval-doubt", "failed", "begin")
    assert event["what"] == (
        "job 7: it may have begun before 1970-01-02T03:50:05Z: no scrape without it is known before, "
        "so the energy is of the telemetry only, from then"
    )
    assert event["what"] == job.list_remarks()[1]
    assert "import slurm 7" in event["next"]
    server.until = END - 100
    assert "(begin unknown, end unknown, " in found(server).list_remarks()[0]
    assert found(server).list_facts()["unsure_s"] == [None, None]


def test_nodes_that_are_lost_meanwhile():
    server = Server({"n1": 5.0, "n2": 7.0, "n3": 9.0, "n4": 11.0, "n5": 12.0, "n6": 13.0})
    server.since = {"n2": BEGIN + 300}
    server.up_to = dict.fromkeys(("n3", "n4", "n5", "n6"), END - 900) | {"n2": END - 20}
    job = found(server)
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0]
    assert abs(job.end_ns / NS - END) <= job.unsure_s[1]
    left = "of the others: their energy beyond it is filled in, not measured"
    assert [(d.what, d.status, d.side) for d in job.doubts] == [
        (f"telemetry of n2 begins up to 311 s after the first {left}", "failed", "begin"),
        (f"telemetry of n3, n4, n5 and 1 more ends up to 896 s before the last {left}", "failed", "end"),
    ]


def test_agents_that_ask_squeue_know_of_it_later():
    """What they state is believed, within reason; the wider bound counts in the interval."""
    server = Server({"n1": 5.0})
    server.late, server.told = {"n1": 30.0}, {"n1": 33.0}
    job = found(server)
    assert job.unsure_s == pytest.approx(((15 + 33) / 2,) * 2)
    assert abs(job.start_ns / NS - BEGIN) <= job.unsure_s[0]
    assert abs(job.end_ns / NS - END) <= job.unsure_s[1]
    server.told = {"n1": 1e9}
    assert found(server).unsure_s == pytest.approx(((15 + USUAL_LAG_S) / 2,) * 2)


def test_one_that_nobody_showed():
    server = Server({"n1": 5.0})
    server.stays["n1"] = []
    with raises_code("unavailable.unknown-job"):
        found(server)


def test_nodes_narrow_the_selectors():
    some = asked(nodes=["n-1", "10.0.0.7"])
    assert some.host == "{instance}"
    assert all(r'instance=~"\\[?(?:n\\-1|10\\.0\\.0\\.7)(?:[].:].*)?"' in q.query for q in some.queries)
    assert some.is_wanted("n-1.cluster")
    assert not some.is_wanted("n-10")
    assert some.find_host({"instance": "[::1]:9797"}) == "::1"
    own = {"label": "p", "address": "http://m:1", "host": "{node}", "nodes": ["a"]}
    both = read_settings(own | {"queries": [{"query": "x_watts"}]})
    assert [q.query for q in both.queries] == [r'x_watts{node=~"\\[?(?:a)(?:[].:].*)?"}']
