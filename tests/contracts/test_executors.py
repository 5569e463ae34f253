"""Run one contract test over every executor: each gives the same records."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from tests.slurm.cluster import missing
from tests.slurm.studies import CPU, bench, drive
from tests.study.bench import environment
from tests.waiting import until

from joulelab.core.process_identity import identify_process
from joulelab.study import executors
from joulelab.study.executors import SlotEnd, open_executor
from joulelab.study.folder import Plan, join_study
from joulelab.study.knobs import Knob
from joulelab.study.matrix import NodeType, Workload, make_cells
from joulelab.study.slots import State, read_slot

pytestmark = pytest.mark.system

NODES = {"local": NodeType(), "slurm": CPU}
# What only a job has.
OF_JOBS = {"job", "task", "restart", "cluster", "node"}


class Place:
    """Make studies and executors of one kind."""

    def __init__(self, name, folder, environ):
        self.name, self.folder, self.environ = name, folder, environ
        self.made = 0

    def study(self, name, *command, **knobs):
        """Make a study in a folder of its own."""
        self.made += 1
        node = NODES[self.name]
        made = make_cells(Workload(command, node_type=node.name), [Knob.parse(*item) for item in knobs.items()])
        nodes = {} if self.name == "local" else {node.name: node}
        return join_study(self.folder / f"{self.name}-{name}-{self.made}", name, Plan(made, nodes=nodes), seed=1)

    def executor(self, study):
        return open_executor(self.name, self.environ, study.nodes, study.folder)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Give every executor its place: a cluster where it needs one."""
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("executors")
        found = {"local": Place("local", folder, environment(folder))}
        if not missing():
            slurm = stack.enter_context(bench())
            found["slurm"] = Place("slurm", slurm.folder, slurm.environ)
        yield found


# The executor of twins runs nothing, it lays out: tests/study/test_virtual.py.
@pytest.fixture(params=[name for name in executors.list_executors() if name != "twin"])
def place(request, places):
    if request.param not in places:
        pytest.skip(missing())
    return places[request.param]


def records(study):
    """Return what is left of each slot, without what differs from one call to the next."""
    found = {}
    for key in sorted(study.read_cells()):
        for repeat in (1, 2):
            slot = study.get_slot_folder(key, repeat)
            files = {re.sub(r"\d{8}-\d{6}[^/]*", "RUN", str(file.relative_to(slot))) for file in slot.rglob("*")}
            files = {re.sub("RUN/[^/]+", "RUN/HOST", file) if "." not in file.split("/")[1] else file
                     for file in files if "/" in file} | {file for file in files if "/" not in file}  # fmt: skip
            (run,) = (file.parent for file in slot.glob("*/run.json"))
            shapes = {name: sorted(json.loads((slot / name).read_text())) for name in ("slot.json",)}
            claim = json.loads((slot / "claim.json").read_text())
            result = json.loads((run / "results.json").read_text())["result"]
            found[slot.parent.name, slot.name] = {
                "files": files - {"job.json"},
                "claim": set(claim) - OF_JOBS,
                "run": sorted(json.loads((run / "run.json").read_text())),
                "end": sorted(json.loads((run / "end.json").read_text())),
                "none": sorted(name for name, value in result.items() if value is None),
                "state": read_slot(slot).state,
                **shapes,
            }
    return found


def test_all_give_the_same_records(places):
    found = {}
    for name, place in places.items():
        study = place.study("same", "sh", "-c", "echo {n}; exit {n}", n="0,5")
        outcome, news = drive(study, place.executor(study), 2)
        assert (outcome.done, outcome.failed, outcome.error) == (2, 2, None), news
        # Cells of different node types have different keys.
        keys = sorted(study.read_cells(), key=lambda key: study.read_cells()[key].label)
        seen = records(study)
        found[name] = [seen[key, repeat] for key in keys for repeat in ("r01", "r02")]
        assert [record["state"] for record in found[name]] == [State.DONE] * 2 + [State.FAILED] * 2
    for seen in found.values():
        assert seen == found["local"]


def test_cancelled_slots_end_and_are_not_done(place):
    study = place.study("cancelled", "sleep", "100")
    (key,) = study.read_cells()
    slot = study.get_slot_folder(key, 1)
    executor = place.executor(study)
    assert executor.at_once >= 1
    executor.submit(slot)
    until(lambda: executor.poll(0.1) == [] and list(slot.glob("*/*/events.run.jsonl")), "it runs", most_s=0)
    assert read_slot(slot, executor.is_over).state is State.LIVE
    executor.cancel(slot)
    news = []
    until(lambda: news.extend(executor.poll(0.2)) or news, "it ends", most_s=0)
    (ended,) = news
    assert isinstance(ended, SlotEnd)
    assert ended.slot == slot
    assert read_slot(slot, executor.is_over).state is not State.LIVE
    assert read_slot(slot, executor.is_over).state is not State.DONE
    executor.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody waits for its process
def test_slots_go_on_when_an_executor_is_closed(place):
    go = place.folder / f"{place.name}-{place.made}.go"
    study = place.study("closed", "sh", "-c", f"until test -e {go}; do sleep 0.1; done")
    (key,) = study.read_cells()
    slot = study.get_slot_folder(key, 1)
    executor = place.executor(study)
    executor.submit(slot)
    until(lambda: executor.poll(0.1) == [] and list(slot.glob("*/*/events.run.jsonl")), "it runs", most_s=0)
    executor.close()
    go.touch()
    until(lambda: read_slot(slot).state is State.DONE, "it is done")


def test_of_claims_that_are_not_of_theirs_nothing_is_known(place):
    executor = place.executor(place.study("claims", "true"))
    assert executor.is_over(identify_process()) is None
    assert executor.is_over({"job": "77", "cluster": "elsewhere"}) is None
    assert executor.poll(0.0) == []
    executor.close()
