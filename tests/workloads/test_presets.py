"""What the papers' presets promise, and how many threads a rank takes: no framework is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.rows import every_row

from joulelab.cli.study_driver import prepare_data
from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import find_workload, merge_parameters
from joulelab.study.study_file import read_study
from joulelab.workloads.commands import command
from joulelab.workloads.training.launch import count_threads, drop_torchrun_threads
from joulelab.workloads.training.training_task import Goal

ROOT = Path(__file__).parents[2]


@pytest.fixture
def eight_cpus_of_four_cores(tmp_path: Path) -> Path:
    """Write the topology of a processor whose CPUs n and n + 4 are one core."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "ranks", "environ", "cpus", "threads"),
    [
        (0, 1, {}, range(8), 4),
        (0, 2, {}, range(8), 2),
        (0, 8, {}, range(8), 1),
        (0, 1, {}, (0, 4, 5), 2),  # an affinity: two of one core, one of another
        (0, 1, {"OMP_NUM_THREADS": "3"}, range(8), 3),
        (0, 2, {"OMP_NUM_THREADS": "3"}, range(8), 3),
        (0, 1, {"OMP_NUM_THREADS": "6,2"}, range(8), 6),
        (0, 1, {"OMP_NUM_THREADS": "many"}, range(8), 4),
        (7, 1, {"OMP_NUM_THREADS": "3"}, range(8), 7),
        (0, 1, {}, (8, 9), 2),  # no topology: each counts
    ],
)
def test_a_rank_takes_physical_cores_unless_told_otherwise(
    eight_cpus_of_four_cores: Path, asked: int, ranks: int, environ: dict[str, str], cpus: range, threads: int
) -> None:
    assert count_threads(asked, ranks, environ, cpus, eight_cpus_of_four_cores) == threads


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "OMP_NUM_THREADS": "1"}


@every_row(
    ("environ", "ancestors", "is_kept"),
    [
        (TORCHRUN, [{}], False),
        (TORCHRUN, [TORCHRUN, {"HOME": "/"}, {"OMP_NUM_THREADS": "1"}], False),  # a script between torchrun and us
        (TORCHRUN, [{"OMP_NUM_THREADS": "1"}], True),
        (TORCHRUN, [], True),  # not known
        ({**TORCHRUN, "OMP_NUM_THREADS": "3"}, [{}], True),
        ({"OMP_NUM_THREADS": "1"}, [{}], True),
    ],
)
def test_threads_that_torchrun_sets_are_not_the_users(
    environ: dict[str, str], ancestors: list[dict[str, str]], is_kept: bool
) -> None:
    kept = {k: v for k, v in environ.items() if is_kept or k != "OMP_NUM_THREADS"}
    assert drop_torchrun_threads(environ, ancestors) == kept


@pytest.mark.system
@pytest.mark.parametrize(("user", "threads"), [(None, 4), pytest.param("3", 3, marks=pytest.mark.campaign)])
def test_ranks_of_a_real_torchrun_respect_the_user_only(user: str | None, threads: int) -> None:
    pytest.importorskip("torch")
    code = (
        "import os; from pathlib import Path; from joulelab.workloads.training.launch import *\n"
        "environ = drop_torchrun_threads(os.environ)\n"
        "print(f'{count_threads(0, 2, environ, range(8), Path())}\\n', end='')\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environ |= {} if user is None else {"OMP_NUM_THREADS": user}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    done = subprocess.run(
        [sys.executable, *words, sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == [str(threads)] * 2, done.stderr


@pytest.mark.parametrize("name", ["vgg19bn-xray", "vgg19bn-notebook"])
@pytest.mark.parametrize("preset", ["paper", "paper-250"])
def test_the_papers_preset_decodes_whole_images(name: str, preset: str) -> None:
    workload = find_workload(name)
    assert merge_parameters(name, workload.PARAMETERS, {"preset": preset}, workload.PRESETS)["draft"] == "no"


def test_nobody_is_promised_the_papers_resnet_on_real_gpus() -> None:
    header = (ROOT / "studies" / "bnl.toml").read_text().partition("\nname =")[0].replace("\n# ", " ")
    notes = " ".join(find_workload("resnet152-cifar10").NOTES)
    for text in (header, notes):
        assert "26 h" in text
        assert "factor of 4" in text
        assert "H100" in text
        assert "4.8 s and 6.9 s" in text
        assert "does not explain" in text


def test_the_node_without_gpus_does_not_claim_independent_predictions() -> None:
    file = ROOT / "src" / "joulelab" / "twin" / "nodes" / "horeka-blue.toml"
    header = file.read_text().partition("\ntitle =")[0].replace("\n# ", " ")
    assert "all predicted" not in header
    assert "no independent predictions" in header
    assert "262.0 W" in header


@every_row(
    ("target", "patience", "is_lower_better", "epochs", "reached"),
    [
        (0, 0, False, [0.5, 0.4, 0.3, 0.2], (4, "")),
        (0.98, 0, False, [0.5, 0.98, 0.9], (2, "target")),
        (5.65, 0, True, [9.0, 5.7, 5.6], (3, "target")),
        (0, 2, False, [0.5, 0.6, 0.6, 0.55, 0.9], (4, "patience")),
        (0, 2, True, [9.0, 8.0, 8.5, 7.0, 7.5, 7.1], (6, "patience")),
        (0.9, 1, False, [0.5, 0.9], (2, "target")),
    ],
)
def test_a_training_ends_at_its_target_or_when_it_no_longer_improves(
    target, patience, is_lower_better, epochs, reached
):
    goal = Goal(target, patience, is_lower_better=is_lower_better)
    done = next((n for n, quality in enumerate(epochs, 1) if goal.take_quality(quality)), len(epochs))
    assert (done, goal.reached) == reached
    assert goal.is_set() == bool(target or patience)


@pytest.mark.parametrize("name", ["resnet152-cifar10", "vgg19bn-xray", "xception-birds"])
def test_a_target_that_no_training_reaches_is_refused(name: str) -> None:
    workload = find_workload(name)

    def check(**more: str) -> None:
        workload.command(merge_parameters(name, workload.PARAMETERS, more, workload.PRESETS))

    check(target="0.98", patience="5")
    with pytest.raises(ConfigError, match=r"target is 98 \(an accuracy is 0 to 1\); give target=0.98"):
        check(target="98")
    with pytest.raises(ConfigError, match="give a number from 0 to 1"):
        check(target="980")
    for given in ({"target": "0.98"}, {"patience": "2"}):
        with pytest.raises(ConfigError, match="target and patience need epochs"):
            check(epochs="0", **given)
    with pytest.raises(ConfigError, match=r"load is .*\(it is not a model that save= wrote\)"):
        check(load=__file__)


def test_loading_processes_start_as_in_the_papers():
    for name in ("vgg19bn-xray", "vgg19bn-notebook", "resnet152-cifar10"):
        assert find_workload(name).PARAMETERS["worker_starts"][0] == "each-epoch"
    assert find_workload("xception-birds").PARAMETERS["worker_starts"][0] == "once"


def test_a_model_to_load_has_to_be_there(tmp_path):
    module = find_workload("lstm-load")
    parameters = merge_parameters("lstm-load", module.PARAMETERS, {"load": str(tmp_path / "none.pt"), "epochs": "0"})
    with pytest.raises(ConfigError, match="there is no such file"):
        module.command(parameters)


@pytest.mark.parametrize(
    ("name", "data", "is_made"),
    [
        ("vgg19bn-xray", "auto", True),
        ("vgg19bn-notebook", "synthetic-files", True),
        ("vgg19bn-xray", "synthetic-memory", False),
        ("xception-birds", "auto", True),
        ("xception-birds", ".", False),
        ("llava15-13b", "auto", True),
        ("lstm-load", "auto", False),
        ("lstm-load", "victoria", False),
        ("lstm-notebook", "synthetic-files", True),
    ],
)
def test_files_of_stand_ins_are_made_by_a_command_of_their_own(name, data, is_made, monkeypatch):
    monkeypatch.delenv("JOULELAB_DATA", raising=False)
    module = find_workload(name)
    words = module.prepare(merge_parameters(name, module.PARAMETERS, {"data": data}))
    assert (words is not None) == is_made
    if words is not None:
        assert words[3] == "--prepare"
        assert f"data={data}" in words


def test_published_data_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULELAB_DATA", str(tmp_path))
    (tmp_path / "birds-450").mkdir()
    module = find_workload("xception-birds")
    assert module.prepare(merge_parameters("xception-birds", module.PARAMETERS, {})) is None


def test_stand_ins_are_made_before_measuring_starts(monkeypatch):
    done = []
    monkeypatch.setattr("subprocess.run", lambda argv, **_: done.append(argv[1:4]))
    monkeypatch.setattr("joulelab.workloads.commands.run_and_exit", lambda words, **_: done.append(list(words[1:3])))
    monkeypatch.setattr("joulelab.workloads.commands._is_recorded", lambda: False)
    words = ["run", "vgg19bn-xray", "--preset", "smoke"]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    module = ["-m", "joulelab.workloads.vgg19bn_xray"]
    assert done == [[*module, "--prepare"], module]


def test_a_study_makes_stand_ins_once_for_all_its_cells(monkeypatch):
    done = []
    monkeypatch.setattr("joulelab.run.workload_registry.prepare_workload", lambda words, _: done.append(words))
    plan = read_study(ROOT / "studies" / "gdansk.toml").plan
    assert len(plan.cells) == 68
    prepare_data(plan)
    assert done == [("xception-birds", "classes=69", "epochs=5", "images=10000")]
