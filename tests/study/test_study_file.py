"""Study files: what they mean, in the page's examples too, and sweeps written as one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.study.test_study_mistakes import said

from joulelab.core.errors import ConfigError, StoreError
from joulelab.core.toml_reading import describe_keys
from joulelab.study.folder import Plan, Settings, join_study
from joulelab.study.knobs import Knob, find_reference
from joulelab.study.matrix import NodeType, Workload, make_cells
from joulelab.study.results import WorkPattern
from joulelab.study.study_file import NodeKeys, StudyFile, StudyKeys, WorkloadKeys, read_study, write_sweep

WHOLE = r"""
name = "horeka"
repeats = 5
warmup = 1
seed = 7
goals = ["energy", "EDP", "eds:1.5"]
reference = { node = "gpu", batch = 256, phase = "train" }
scope = "node.ac"
per = "samples"
idle = "10s"
cool = "45C"
cool_limit = "5m"
timeout = "1h"
period = 0.5
meters = ["nvml", "rapl"]
no_meters = "host"
estimate = true
rated_cpu = 225

[knobs]
cap = { values = "200:400:100", when = { node = "gpu" } }
batch = [256, 512]

[[skip]]
node = ["cpu", "cpu-mix"]
batch = 512

[workloads.train]
command = "python train.py --batch {batch} --name 'a b'"
phases = ["train", "predict"]
nodes = ["gpu", "cpu-mix"]
work = 'samples: (\d+)'
work_sum = true
knobs = { epochs = [30] , batch = "256,512" }
timeout = "2h"

[workloads.serve]
command = ["./serve", "{epochs}", ""]
knobs.epochs = 1

[nodes.gpu]
partition = "accelerated"
constraint = "a100"
gpus = 4
nodes = 2
cpus = 76
time = "1-02:03:04"
options = ["--mem=0"]
setup = "module load cuda"
at_once = 10
[nodes.cpu-mix]
executor = "slurm"
uses = "cpu"
environment = { OMP_NUM_THREADS = 76, A = "b" }
time = "90m"
[nodes.cpu]
"""


def write(folder: Path, text: str, name: str = "study.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def read(folder: Path, text: str) -> StudyFile:
    return read_study(write(folder, text))


def knobs(study: StudyFile) -> list[tuple[str, str, str]]:
    return [(cell.workload.name, cell.workload.node_type, cell.label) for cell in study.plan.cells]


@pytest.fixture
def whole(tmp_path: Path) -> StudyFile:
    text = WHOLE.replace("--batch {batch} --name 'a b'", "--batch {batch} --name 'a b' {epochs}")
    return read(tmp_path, text)


def test_a_file_that_says_everything(whole: StudyFile, tmp_path: Path) -> None:
    plan = whole.plan
    assert (whole.name, whole.seed, whole.default_seed, whole.path) == ("horeka", 7, 7, tmp_path / "study.toml")
    assert whole.text == whole.path.read_text(encoding="utf-8")
    assert plan.file == whole.path
    assert (plan.repeats, plan.warmup, plan.scope, plan.per) == (5, 1, "node.ac", "samples")
    assert plan.goals == ("energy", "edp", "eds:1.5")
    assert plan.reference == {"node": "gpu", "batch": 256, "phase": "train"}
    assert plan.settings == Settings(
        idle_s=10.0, period_s=0.5, meters=("nvml", "rapl"), without=("host",), cool_c=45.0, cool_limit_s=300.0,
        timeout_s=3600.0, estimate=True, rated_cpu_w=225.0,
    )  # fmt: skip
    assert plan.timeouts == {"train": 7200.0}
    assert plan.work == ({"pattern": r"samples: (\d+)", "name": "samples", "add": True, "workload": "train"},)


def test_cells_have_the_knobs_that_are_theirs(whole: StudyFile) -> None:
    assert knobs(whole) == [
        *(
            ("train", "gpu", f"cap {cap} W, epochs 30, batch {batch}")
            for batch in (256, 512)
            for cap in (200, 300, 400)
        ),
        ("train", "cpu-mix", "epochs 30, batch 256"),
        *(("serve", "gpu", f"cap {cap} W, epochs 1") for cap in (200, 300, 400)),
        ("serve", "cpu-mix", "epochs 1"),
        ("serve", "cpu", "epochs 1"),
    ]
    first = whole.plan.cells[0]
    assert first.make_argv() == ["python", "train.py", "--batch", "256", "--name", "a b", "30"]
    assert first.workload.phases == ("train", "predict")
    assert whole.plan.cells[-1].make_argv() == ["./serve", "1", ""]


def test_node_types_hold_what_the_file_says(whole: StudyFile) -> None:
    gpu, mix, cpu = (whole.plan.nodes[name] for name in ("gpu", "cpu-mix", "cpu"))
    assert gpu == NodeType(
        "gpu",
        "slurm",
        options={
            "partition": "accelerated", "constraint": "a100", "gpus": 4, "nodes": 2, "cpus": 76, "time": 93784.0,
            "options": ["--mem=0"], "at_once": 10, "setup": ["module load cuda"],
        },
    )  # fmt: skip
    assert mix == NodeType("cpu-mix", "slurm", "cpu", {"OMP_NUM_THREADS": "76", "A": "b"}, {"time": 5400.0})
    assert cpu == NodeType("cpu")
    assert (gpu.launch, mix.launch) == ("srun", "direct")
    assert [node.hides_gpus for node in (gpu, mix, cpu)] == [False, True, False]
    for cell in whole.plan.cells:
        assert cell.workload.node == whole.plan.nodes[cell.workload.node_type].get_identity()
    assert all(NodeType.from_json(json.loads(json.dumps(node.to_json()))) == node for node in (gpu, mix, cpu))


def test_what_pays_and_how_long_is_no_identity_of_a_node_type() -> None:
    base = NodeType("a", "slurm", options={"partition": "p"})
    for key, value in (("account", "x"), ("time", 60.0), ("qos", "q"), ("at_once", 3), ("setup", ["x"])):
        assert NodeType("a", "slurm", options={"partition": "p", key: value}).get_identity() == base.get_identity()
    # What is usual may be said, and is the same.
    for key, value in (("nodes", 1), ("tasks", 1), ("exclusive", True), ("launch", "direct")):
        assert NodeType("a", "slurm", options={"partition": "p", key: value}).get_identity() == base.get_identity()
    for key, value in (("nodes", 2), ("tasks", 4), ("exclusive", False), ("launch", "srun"), ("gpus", 0), ("cpus", 1)):
        assert NodeType("a", "slurm", options={"partition": "p", key: value}).get_identity()[key] == value
    assert NodeType("a", environment={"A": "1"}).get_identity() == {"environment": {"A": "1"}}
    assert NodeType("a", uses="cpu").get_identity() == {"uses": "cpu"}
    assert NodeType().get_identity() == NodeType("other").get_identity() == {}


def test_the_least_that_a_file_says(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, '[workloads.a]\ncommand = "true"\n', "least.toml"))
    assert (study.name, study.seed, study.plan.repeats, study.plan.goals) == ("least", None, 3, ("energy", "edp"))
    assert study.default_seed == 1_806_394_786  # made of the name: plan and run have the same order
    (cell,) = study.plan.cells
    assert study.plan.nodes == {"local": NodeType()}
    assert cell.workload == Workload(("true",), "a", "local")
    assert cell.key == "f80447a48bac"  # results on disk are found by it
    assert study.plan.settings == Settings()


def test_of_several_conditions_the_first_that_holds_counts(tmp_path: Path) -> None:
    text = """
    [[knobs.batch]]
    values = 1
    when = { model = "big", node = "b" }
    [[knobs.batch]]
    values = [2, 3]
    when.model = "big"
    [[knobs.batch]]
    values = 4
    [knobs.model]
    values = ["big", "small"]
    [workloads.w]
    command = "{batch} {model}"
    [nodes.a]
    [nodes.b]
    """
    assert knobs(read(tmp_path, text)) == [
        ("w", "a", "batch 2, model big"),
        ("w", "a", "batch 3, model big"),
        ("w", "a", "batch 4, model small"),
        ("w", "b", "batch 1, model big"),
        ("w", "b", "batch 4, model small"),
    ]


def test_a_workload_has_only_the_knobs_that_it_names(tmp_path: Path) -> None:
    text = """
    [knobs]
    a = [1, 2]
    b = [3]
    [workloads.x]
    command = "{a}"
    [workloads.y]
    command = "{b} {{a}}"
    """
    study = read(tmp_path, text)
    assert [cell.make_argv() for cell in study.plan.cells] == [["1"], ["2"], ["3", "{a}"]]


def test_a_reference_workload_has_its_knobs_as_parameters(tmp_path: Path) -> None:
    text = """
    [knobs]
    seconds = [1, 2]
    cap = 100
    batch = 3
    [workloads.w]
    reference = "burn"
    parameters = { size = 64, processes = "{gpus}" }
    knobs = { gpus = [2] }
    [workloads.x]
    command = "{batch}"
    nodes = "local"
    """
    first, second, _ = read(tmp_path, text).plan.cells
    assert first.workload.kind == "reference"
    assert first.workload.command == ("burn", "processes={gpus}", "seconds={seconds}", "size=64")
    assert second.make_argv() == ["burn", "processes=2", "seconds=2", "size=64"]


def test_a_preset_stands_among_the_parameters_or_the_knobs(tmp_path: Path) -> None:
    text = """
    [knobs]
    seconds = [1, 2]
    [workloads.w]
    reference = "burn"
    parameters = { preset = "smoke", size = 64 }
    [workloads.x]
    reference = "burn"
    knobs = { preset = ["smoke", "smoke-node"] }
    """
    found = read(tmp_path, text).plan.cells
    assert [cell.make_argv() for cell in found[:3]] == [
        ["burn", "preset=smoke", "seconds=1", "size=64"],
        ["burn", "preset=smoke", "seconds=2", "size=64"],
        ["burn", "preset=smoke", "seconds=1"],
    ]
    assert len({cell.key for cell in found}) == 6
    for wrong in ("parameters = { preset = 'smok' }", "knobs = { preset = ['smoke', 'smok'] }"):
        with pytest.raises(ConfigError, match="there is no preset 'smok'; did you mean 'smoke'"):
            read(tmp_path, f"[workloads.w]\nreference = 'burn'\n{wrong}\n")


def notebook(folder: Path, source: str, name: str = "train.ipynb") -> None:
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source, "outputs": []}
    data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (folder / name).write_text(json.dumps(data), encoding="utf-8")


def test_a_notebook_is_named_as_it_is_written(tmp_path: Path) -> None:
    notebook(tmp_path, "epochs = 1\nbatch = 2\nfast = False\nrate = 0.1")
    text = """
    [knobs]
    epochs = [1, 2]
    batch = { values = [3], when = { epochs = 2 } }
    cap = 100
    other = 1
    [workloads.w]
    notebook = "train.ipynb"
    parameters = { fast = true, rate = 0.25 }
    pause = "2m"
    kernel = "python3"
    [workloads.x]
    command = "{other}"
    """
    found = read(tmp_path, text).plan.cells
    words = ("train.ipynb", "--pause=120", "--kernel=python3")
    assert [cell.workload.command for cell in found[:2]] == [
        (*words, "epochs={epochs}", "fast=true", "rate=0.25"),
        (*words, "batch={batch}", "epochs={epochs}", "fast=true", "rate=0.25"),
    ]
    assert (found[0].workload.kind, len(found)) == ("notebook", 3)
    other = tmp_path / "elsewhere"
    other.mkdir()
    notebook(other, "epochs = 1\nbatch = 2\nfast = False\nrate = 0.1")
    assert [cell.key for cell in read(other, text).plan.cells] == [cell.key for cell in found]


def test_a_knob_in_a_parameters_text_is_no_parameter_itself_unless_there_is_one(tmp_path: Path) -> None:
    notebook(tmp_path, "k = 1\nm = 1")
    text = """
    [knobs]
    n = [1, 2]
    [workloads.w]
    notebook = "train.ipynb"
    parameters = { k = "{n}0-{m}-{o}" }
    knobs = { m = 3, o = 4 }
    [workloads.x]
    reference = "burn"
    parameters = { size = "{n}00" }
    """
    found = read(tmp_path, text).plan.cells
    assert [cell.make_argv() for cell in found] == [
        ["train.ipynb", "k=10-3-4", "m=3"],
        ["train.ipynb", "k=20-3-4", "m=3"],
        ["burn", "size=100"],
        ["burn", "size=200"],
    ]


def test_a_byte_order_mark_is_none_of_the_files_text(tmp_path: Path) -> None:
    file = write(tmp_path, '\ufeffrepeats = 2\n[workloads.a]\ncommand = "true"\n')
    assert read_study(file).plan.repeats == 2
    assert read_study(file).text.startswith("repeats")


def test_an_edited_file_keeps_the_cells_that_did_not_change(tmp_path: Path) -> None:
    text = '[knobs]\nbatch = [1, 2]\n[workloads.w]\ncommand = "{batch}"\n[nodes.a]\n[nodes.b]\nuses = "cpu"\n'
    before = {cell.key for cell in read(tmp_path, text).plan.cells}
    for old, new, kept, more in (
        ("[1, 2]", "[2, 3]", 2, 2),
        ("[knobs]", 'repeats = 9\ngoals = "time"\nidle = 3\n[knobs]', 4, 0),
        ('"cpu"', '"gpu"', 2, 2),
        ('"{batch}"', '"{batch}"\ntimeout = 3\nwork = "x (1)"', 4, 0),
        ('"{batch}"', '"{batch}"\nphases = ["p"]', 0, 4),
        ('"{batch}"', '"{batch} -v"', 0, 4),
        ("[nodes.a]", "[nodes.c]", 2, 2),
    ):
        after = {cell.key for cell in read(tmp_path, text.replace(old, new)).plan.cells}
        assert (len(after & before), len(after - before)) == (kept, more), new


def test_a_configuration_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "meters.toml").touch()
    study = read(tmp_path, 'config = "meters.toml"\ncool = 60\n[workloads.a]\ncommand = "true"\n')
    assert study.plan.settings.config == str(tmp_path / "meters.toml")
    assert (study.plan.settings.cool_s, study.plan.settings.cool_c) == (60.0, None)


def test_the_plan_of_a_file_makes_a_study(whole: StudyFile, tmp_path: Path) -> None:
    made = join_study(tmp_path / "studies" / "x", whole.name, whole.plan, whole.seed)
    made.add_cells(whole.plan.cells)
    assert set(made.read_cells()) == {cell.key for cell in whole.plan.cells}
    assert made.nodes == dict(whole.plan.nodes)
    assert made.get_settings("train").timeout_s == 7200.0


def test_a_study_whose_command_holds_a_secret_is_readable_by_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, mode in (("--token=Tr0ub4dor-and-3", 0o700), ("--lr=1", 0o755)):
        plan = Plan(make_cells(Workload(("train", word, "{n}")), [Knob.parse("n", "1,2")]))
        (folder := tmp_path / f"{mode:o}").mkdir(mode=0o755)
        made = join_study(folder, "x", plan, 1)
        assert folder.stat().st_mode & 0o777 == mode
        assert [cell.workload.command[1] for cell in made.read_cells().values()] == [word, word]
    monkeypatch.setattr(Path, "chmod", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    plan = Plan(make_cells(Workload(("train", "--token=Tr0ub4dor-and-3", "{n}")), [Knob.parse("n", "1,2")]))
    with pytest.raises(StoreError, match="not permitted"):
        join_study(tmp_path / "y", "y", plan, 1)
    assert not list((tmp_path / "y").glob("*.json"))


def test_ten_thousand_cells_are_made_while_one_waits(tmp_path: Path) -> None:
    text = """
    [knobs]
    cap = "100:199:1"
    batch = "1:100:1"
    gpus = { values = [1], when = { batch = "1:50:1" } }
    [[skip]]
    cap = 100
    batch = 1
    [workloads.w]
    command = "{batch}"
    """
    study = read(tmp_path, text)
    assert len({cell.key for cell in study.plan.cells}) == 9_999


def test_a_notebook_is_looked_into(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "epochs = 1", "outputs": []}
    data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (tmp_path / "train.ipynb").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "broken.ipynb").write_text("{", encoding="utf-8")
    text = """\
[workloads.w]
notebook = "train.ipynb"
knobs = { epohcs = [1] }
parameters = { epocks = 3 }
[workloads.x]
notebook = "broken.ipynb"
[workloads.y]
notebook = "trian.ipynb"
"""
    told = said(tmp_path, text).splitlines()
    assert told[0].startswith("3: train.ipynb: there is no parameter 'epohcs'")
    assert told[1].startswith("4: train.ipynb: there is no parameter 'epocks'")
    assert "did you mean 'epochs'" in told[1]
    assert told[2].startswith("6: broken.ipynb: this is not a notebook")
    assert told[3].startswith("8: there is no notebook trian.ipynb")
    assert "did you mean 'train.ipynb'?" in told[3]


def test_phases_that_are_cells_of_a_notebook_are_there_and_run(tmp_path: Path) -> None:
    texts = ["x = 1", "", "y", *("z" * 6)]
    cells = [{"cell_type": "code", "metadata": {}, "source": text, "outputs": []} for text in texts]
    cells.insert(1, {"cell_type": "markdown", "metadata": {}, "source": "text"})
    data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (tmp_path / "a.ipynb").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "none.ipynb").write_text(json.dumps({**data, "cells": []}), encoding="utf-8")
    (tmp_path / "broken.ipynb").write_text("[" * 100_000, encoding="utf-8")
    text = """\
[workloads.a]
notebook = "a.ipynb"
phases = ["cell 1", "cell 3", "train", "cell 2", "cell 10", "cell 0"]
[workloads.b]
notebook = "none.ipynb"
phases = "cell 1"
[workloads.c]
notebook = "broken.ipynb"
phases = "cell 1"
[workloads.d]
command = "true"
phases = "cell 99"
"""
    some = "name one of cell 1, cell 3, cell 4, cell 5, cell 6, cell 7, ..., counted over all code cells"
    told = said(tmp_path, text).splitlines()
    assert told[:4] == [
        f"3: there is no phase 'cell 2' (this cell is not run); {some}",
        f"3: there is no phase 'cell 10' (a.ipynb has 9 code cells); {some}",
        f"3: there is no phase 'cell 0' (a.ipynb has 9 code cells); {some}",
        "6: there is no phase 'cell 1' (none.ipynb has 0 code cells); leave it out",
    ]
    assert told[4].startswith("8: broken.ipynb: this is not a notebook")
    assert len(told) == 5


FREE = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=","), min_size=1).filter(str.strip)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text(), max_size=3),
    values=st.lists(FREE, min_size=1, max_size=3),
    caps=st.sampled_from(["", "100:200:50", "60%:100%:20%", "99.5"]),
    clocks=st.sampled_from(["", "900:1980:120"]),
)
def test_a_sweep_reads_back_as_the_same_cells(
    tmp_path: Path, words: list[str], values: list[str], caps: str, clocks: str
) -> None:
    given_ = [("cap", caps), ("clock", clocks), ("batch", ",".join(values)), ("gpus", "1,2")]
    knobs = [Knob.parse(name, text) for name, text in given_ if text]
    # What stands in braces in the words would need a knob of its own.
    plain = [word.replace("{", "").replace("\0", "") for word in words]
    plan = Plan(make_cells(Workload(("train", *plain, "x={batch}", "{{batch}}")), knobs), repeats=2, goals=("energy",))
    file = tmp_path / "sweep.toml"
    file.write_text(write_sweep(plan, "a.sweep"), encoding="utf-8", newline="")
    study = read_study(file)
    assert [cell.knobs for cell in study.plan.cells] == [cell.knobs for cell in plan.cells]
    assert [cell.key for cell in study.plan.cells] == [cell.key for cell in plan.cells]
    assert (study.name, study.plan.repeats, study.plan.goals) == ("a.sweep", 2, ("energy",))


@pytest.mark.parametrize(
    "how",
    [
        Settings(),
        Settings(idle_s=10.0, cool_c=45.5, cool_limit_s=30.0, timeout_s=7200.0, period_s=0.001, meters=("a", "b")),
        Settings(idle_s=0.0, cool_s=0.25, without=("nvml",), estimate=True, rated_cpu_w=95.0),
    ],
)
def test_how_slots_are_run_reads_back(tmp_path: Path, how: Settings) -> None:
    knobs = [Knob.parse("cap", "60%:100%:20%"), Knob.parse("batch", "32,x")]
    plan = Plan(
        make_cells(Workload(("train", "{batch}")), knobs),
        repeats=4,
        warmup=1,
        settings=how,
        goals=("edp", "energy@slowdown=5%"),
        reference=find_reference({"cap": "100%", "batch": "32"}, knobs),
        work=(WorkPattern.parse(r"tokens: (\d+)", add=True).to_json(),),
        scope="gpu",
        per="tokens",
    )
    (tmp_path / "s.toml").write_text(write_sweep(plan, "s"), encoding="utf-8")
    read = read_study(tmp_path / "s.toml").plan
    for name in ("repeats", "warmup", "settings", "goals", "reference", "scope", "per"):
        assert getattr(read, name) == getattr(plan, name), name
    assert read.work == ({**plan.work[0], "workload": ""},)


def test_the_text_is_one_that_people_would_write() -> None:
    knobs = [Knob.parse("cap", "100,200"), Knob.parse("rate", "0.1,fast")]
    plan = Plan(
        make_cells(Workload(("train", "--rate={rate}")), knobs), 3, goals=("energy",), settings=Settings(idle_s=10.0)
    )
    expected = """\
name = "train"
seed = 7
repeats = 3
goals = ["energy"]
idle = "10s"

[knobs]
cap = [100, 200]
rate = ["0.1", "fast"]

# Without a name the runs of the sweep count; with one, the study starts anew.
[workloads.""]
command = ["train", "--rate={rate}"]
"""
    assert write_sweep(plan, "train", 7) == expected


def test_a_sweep_of_a_notebook_reads_back_as_the_same_cells(tmp_path: Path) -> None:
    notebook(tmp_path, "k = 1\nm = 2\n")
    words, knobs = ("train.ipynb", "k={k}", "m=3"), [Knob.parse("k", "10,20")]
    plan = Plan(make_cells(Workload(words, kind="notebook"), knobs), goals=("energy",))
    (tmp_path / "s.toml").write_text(write_sweep(plan, "s"), encoding="utf-8")
    assert [c.key for c in read_study(tmp_path / "s.toml").plan.cells] == [c.key for c in plan.cells]
    with pytest.raises(ConfigError, match="not all parameters"):
        write_sweep(Plan(make_cells(Workload((*words, "--pause=1"), kind="notebook"), knobs)), "s")


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    knobs = [Knob.parse("cap", "100,200"), Knob.parse("gpus", "1,2")]
    found = make_cells(Workload(("train",)), knobs)
    with pytest.raises(ConfigError, match="only a sweep"):
        write_sweep(Plan(found[1:]), "s")
    with pytest.raises(ConfigError, match="only a sweep"):
        write_sweep(Plan(found, file=tmp_path), "s")
    with pytest.raises(ConfigError, match="not text"):
        write_sweep(Plan(make_cells(Workload(("train", "\udcff")), [])), "s")
    assert "[knobs]" not in write_sweep(Plan(make_cells(Workload(("train",)), [])), "s")


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
