"""The smoke preset of every workload: in this process, and measured on the simulated node as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.following import Marked, marked

from joulelab.run import workload_registry
from joulelab.twin import profile
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.twin_server import TwinServer
from joulelab.workloads import llm_infer
from joulelab.workloads.training import launch

__all__ = ["marked"]

pytest.importorskip("torch")

pytestmark = pytest.mark.system

JOULELAB = [sys.executable, "-m", "joulelab"]
LIMIT_S = 400
NEEDS = {"llava15-13b": "transformers", "llm-infer": "transformers", "lstm-notebook": "nbclient"}
# Workloads that are trained; what they tell is the same.
TRAINED = [
    name
    for name in workload_registry.list_workloads()
    if {"ranks", "epochs"} <= set(workload_registry.find_workload(name).PARAMETERS)
]
OTHERS = [name for name in workload_registry.list_workloads() if name not in TRAINED]
# One training of two ranks and one workload of another kind are measured as users run them, the others in campaigns.
TRAININGS = [
    pytest.param(name, ranks, marks=() if (name, ranks) == ("lstm-load", 2) else pytest.mark.campaign)
    for name in TRAINED
    for ranks in (1, 2)
]
# One of transformers; cells of the others run in test_paper_commands.py.
IN_PROCESS = [pytest.param(name, marks=() if name == "llava15-13b" else pytest.mark.campaign) for name in TRAINED]
MEASURED = [pytest.param(name, marks=() if name == "burn" else pytest.mark.campaign) for name in OTHERS]
# Presets take 15 s and 4 s; a few steps and a second show the same.
FEWER = {
    "resnet152-cifar10": ("max_steps=12",),
    "lstm-load": ("epochs=1", "countries=1", "max_steps=12"),
    "burn": ("seconds=1", "size=128"),
}
PHASES = ["set-up", "warm-up", "epoch 1", "predict", "save"]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Serve a node with two GPUs; return the environment that finds it."""
    with TwinServer(Node(gpus=(find_gpu_model("v100"),) * 2), profiles={"gpu": profile.constant(0.5)}) as server:
        if server.missing is not None:
            pytest.skip(str(server.missing))
        yield {**os.environ, **server.environment, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def measured(node: dict[str, str], runs: Path, name: str, *words: str) -> tuple[dict, str]:
    """Run a workload's smoke preset; return its result and what it printed."""
    given = [f"--set={word}" for word in words]
    command = [
        *JOULELAB,
        "workload",
        "run",
        name,
        "--preset=smoke",
        *given,
        "--runs",
        str(runs),
        "-o",
        str(runs / "out"),
    ]
    done = subprocess.run(command, env=node, capture_output=True, text=True, timeout=LIMIT_S, cwd=runs)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((runs / "out").read_text()), done.stdout


def check_facts(facts: dict, titles: list[str], ranks: int) -> None:
    assert [title for title in PHASES if title not in titles] == []
    assert facts["ranks"] == ranks
    assert facts["data"].startswith("synthetic-")
    assert facts["stopped_by"] in ("end", "max_steps", "max_seconds")
    assert facts["flop_training"] >= facts["flop_forward"] > 0
    assert [facts[name] for name in facts["quality"].split(", ")]


def check_training(result: dict, ranks: int) -> None:
    facts, work = result["facts"], result["work"]
    check_facts(facts, [p["title"] for p in result["phases"]], ranks)
    # Each rank reports what it did; steps are those of all of them together.
    epochs = [p for p in result["phases"] if p["name"] == "epoch"]
    assert sum(p["work"]["steps"] for p in epochs) == facts["steps"]
    trained = sum(p["work"]["samples"] for p in epochs)
    assert trained == pytest.approx(facts["steps"] * facts["batch"], rel=0.2)
    assert sum(p["work"]["FLOP"] for p in epochs) == pytest.approx(trained * facts["flop_training"])
    assert work["samples"] == pytest.approx(trained)
    assert work["predicted"] > 0
    assert {"samples", "FLOP"} <= work.keys() & result["per_work"].keys() & result["rates"].keys()


def check_energy(result: dict) -> None:
    """Each GPU is measured once, whatever the ranks."""
    assert [s["scope"] for s in result["scopes"]].count("gpu:0") == 1
    assert len([s for s in result["scopes"] if s["scope"].startswith("gpu:")]) == 2
    whole = next(g for g in result["groups"] if g["name"] == "measured")["energy"]["value"]
    phases = [p for p in result["phases"] if p["depth"] == 0]
    assert 0 < sum(p["energy"]["measured"]["value"] for p in phases) <= whole * 1.001


@pytest.mark.parametrize(("name", "ranks"), TRAININGS)
def test_trainings(node, tmp_path, name, ranks):
    pytest.importorskip(NEEDS.get(name, "torch"))
    result, printed = measured(node, tmp_path, name, f"ranks={ranks}", *FEWER.get(name, ()))
    check_training(result, ranks)
    check_energy(result)
    assert printed.count("epoch 1: loss") == 1  # the first rank speaks for all
    assert len(list(Path(result["folder"]).glob("*/nvml.power.*"))) == 1  # one recorder


@pytest.mark.parametrize("name", MEASURED)
def test_others(node, tmp_path, name):
    pytest.importorskip(NEEDS.get(name, "torch"))
    result, _ = measured(node, tmp_path, name, *FEWER.get(name, ()))
    check_energy(result)
    assert result["work"]
    assert result["labels"]["workload"] == name


def facts_of(marked: Marked) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in marked.lines():
        facts |= line.get("facts", {})
    return facts


@pytest.mark.no_cover
@pytest.mark.parametrize("name", IN_PROCESS)
def test_trainings_of_this_process(marked: Marked, capsys, name):
    pytest.importorskip(NEEDS.get(name, "torch"))
    module = workload_registry.find_workload(name)
    words = ["preset=smoke", "ranks=1", *FEWER.get(name, ())]
    assert launch.run_training(name, module.PARAMETERS, module.task, module.PRESETS, words) == 0
    assert capsys.readouterr().out.count("epoch 1: loss") == 1
    facts, work = facts_of(marked), marked.work()
    check_facts(facts, marked.titles(), 1)
    assert work["steps"] == facts["steps"]
    assert work["samples"] == pytest.approx(facts["steps"] * facts["batch"], rel=0.2)
    assert work["FLOP"] >= work["samples"] * facts["flop_training"]
    assert work["predicted"] > 0
    assert marked.open() == 0


@pytest.mark.no_cover
def test_serving_of_this_process(marked: Marked):
    pytest.importorskip("transformers")
    assert llm_infer.main(["preset=smoke", "max_seconds=0", "repeats=2"]) == 0
    assert marked.work()["tokens"] == 2 * 4 * 64
    assert marked.open() == 0
