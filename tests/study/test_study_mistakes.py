"""Every kind of mistake in a study file, and what is said of it: the line, the nearest name, what to do."""

from __future__ import annotations

import copy
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import describe_keys
from joulelab.run.config.toml_writing import format_toml
from joulelab.study import study_workloads
from joulelab.study.study_file import NodeKeys, StudyKeys, WorkloadKeys, read_study

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# The file that mistakes are put into; lines are counted from 1.
RIGHT = """\
repeats = 2
[knobs]
cap = "100:200:50"
batch = [256, 512]
[[skip]]
batch = 512
[workloads.train]
command = "train {batch}"
[nodes.gpu]
uses = "gpu"
"""


def said(folder: Path, text: str) -> str:
    file = folder / "s.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read_study(file)
    return str(refused.value).replace(f"{file}:", "").replace(f"{file}: ", "").replace(str(folder), "DIR")


def test_the_file_without_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(RIGHT, encoding="utf-8")
    assert len(read_study(tmp_path / "s.toml").plan.cells) == 3


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(
    ("line", "wrong", "expected"),
    [
        (1, "repaets = 2", "1: unknown key 'repaets' in the file; did you mean 'repeats'? valid: name, repeats,"),
        (1, "command = 'x'", "1: unknown key 'command' in the file; it belongs to [workloads.NAME]"),
        (1, "partition = 'x'", "1: unknown key 'partition' in the file; it belongs to [nodes.NAME]"),
        (1, "repeats = 0", "1: repeats is 0; give a whole number of at least 1"),
        (1, "repeats = 40000", "2: up to 6 cells x 40000 are too many slots (at most 100000 are taken); give fewer"),
        (1, "warmup = true", "1: warmup is true; give a whole number of at least 0"),
        (1, "name = 'a b'", "1: 'a b' cannot name a study; letters, digits"),
        (1, "scope = 3", "1: scope is 3; give a text, in quotes"),
        (1, "goals = ['enrgy']", "1: cannot read the goal 'enrgy' (there is no goal 'enrgy'); known are energy"),
        (1, "idle = '10x'", "1: idle: '10x' is not a time; write it as 10, 10s, 500ms or 2m"),
        (1, "idle = -1", "1: idle: -1 is too short; at least 0s"),
        (1, f"idle = 1{'0' * 400}", "1: idle is 1000000"),
        (1, "timeout = 0", "1: timeout: 0 is too short; at least 0.001s"),
        (1, "period = '1us'", "1: period: '1us' is too short; at least 0.001s"),
        (1, "cool = 'cold'", "1: cool: 'cold' is not a time; write 45C for a temperature of the GPUs, 60s for a time"),
        (1, "config = 'no.toml'", "1: there is no file no.toml (looked for in DIR); it is relative to this file"),
        (1, "estimate = 'yes'", "1: estimate is 'yes'; give true or false"),
        (1, "rated_cpu = 100", "1: rated_cpu is for an estimate; add estimate = true"),
        (1, "rated_cpu = 0\nestimate = true", "1: rated_cpu is 0; give a number above 0"),
        # knobs
        (3, "cap = '0:100:50'", "3: knob cap: 0 is not above 0; write it as 150, 100:260:10 (W)"),
        (3, "cap = '100,60%'", "3: knob cap: watts and percent are mixed (100,60%)"),
        (3, "cap = '100:50:10'", "3: knob cap: '100:50:10' is not a range (its step leads away from its end)"),
        (3, "clock = 'fast'", "3: knob clock: 'fast' cannot be read; write it as 1200"),
        (3, "gpus = 1.5", "3: knob gpus: '1.5' is not a number of GPUs; write it as 1,2,4,8"),
        (3, "cap = [[1]]", "3: the values of the knob cap are [[1]]; give a text as for sweep, a list, or { values"),
        (3, "node = [1]", "3: a knob cannot be named node (it is a column of results); choose another name"),
        (3, "'a-b' = [1]", "3: 'a-b' cannot name a knob; letters, digits and _, no digit at its start"),
        (
            3,
            "bacth = [1]",
            "3: the knob bacth is not used by any workload; did you mean 'batch'? valid: batch; put {ba",
        ),
        (3, "cap = { when = { node = 'gpu' } }", "3: the knob cap has no values; add values = [...]"),
        (3, "cap = { values = 1, wehn = {} }", "3: unknown key 'wehn' in [knobs.cap]; did you mean 'when'?"),
        (3, "cap = { values = 1, when = 'gpu' }", "3: when is 'gpu'; write it as a table: [knobs.cap.when]"),
        (3, "cap = { values = 1, when = { nod = 'gpu' } }", "3: there is no knob 'nod'; did you mean 'node'? valid: w"),
        (3, "cap = { values = 1, when = { cap = 1 } }", "3: a knob cannot depend on itself; valid: workload, node, b"),
        (3, "cap = { values = 1, when = { node = 'gup' } }", "3: there is no node type 'gup'; did you mean 'gpu'?"),
        (3, "cap = { values = 1, when = { node = [] } }", "3: node names nothing; name one of gpu"),
        (
            3,
            "cap = { values = 1, when = { workload = 'trian' } }",
            "3: there is no workload 'trian'; did you mean 'tra",
        ),
        (
            3,
            "cap = { values = 1, when = { batch = 511 } }",
            "3: no cell has batch 511; did you mean '512'? valid: 256,",
        ),
        (
            3,
            "cap = { values = 1, when = { clock = 1 } }\nclock = { values = 1, when = { cap = 1 } }",
            "2: conditions of knobs go round in circles (cap -> clock -> cap); let one of them hold always",
        ),
        # skip
        (6, "bacth = 512", "6: there is no knob 'bacth'; did you mean 'batch'? valid: workload, node, cap, batch"),
        (6, "cap = 120", "6: no cell has cap 120 W; did you mean '100 W'? valid: 100 W, 150 W, 200 W"),
        (6, "", "5: this skips every cell; name a node, a workload or values of knobs"),
        (6, "node = 'gpu'", "5: no cell is left (all are skipped); skip less"),
        (5, "[skip]", "5: skip is {'batch': 512}; write each as a table of its own: [[skip]]"),
        # workloads
        (7, "[workloads.'a b']", "7: 'a b' cannot name a workload; letters, digits, . _ and -"),
        (8, "comand = 'x'", "8: unknown key 'comand' in [workloads.train]; did you mean 'command'?"),
        (8, "comand = 'x'", "7: [workloads.train] has nothing to run; give one of command, notebook, reference"),
        (
            8,
            "repeats = 3",
            "8: unknown key 'repeats' in [workloads.train]; it belongs to the top of the file, above the",
        ),
        (8, "command = 'x'\nreference = 'burn'", "9: [workloads.train] has command and reference; give one of"),
        (8, "command = ''", "8: command is ''; give a text, or a list of words in quotes"),
        (8, "command = '#'", "4: the knob batch is not used by any workload"),  # a word like others
        (8, 'command = ["a\\u0000b"]', "8: command is ['a\\x00b']; give a text, or a list"),
        (8, 'command = "a\\u0000b"', "8: command is 'a\\x00b'; give a text, or a list"),
        (8, 'command = "a \'b"', "8: command: it cannot be split into words (No closing quotation); close the quotes"),
        (
            8,
            "command = '{bacth}'",
            "8: the placeholder {bacth} has no knob; did you mean 'batch'? valid: cap, batch; or",
        ),
        (8, "command = 'x'\nknobs = { n = 1 }", "9: the knob n is not used by [workloads.train]; put {n} where its va"),
        (8, "command = '{batch}'\nknobs = { node = 1 }", "9: a knob cannot be named node"),
        (8, "command = '{batch}'\nnodes = ['gup']", "9: there is no node type 'gup'; did you mean 'gpu'? valid: gpu"),
        (8, "command = '{batch}'\nnodes = []", "9: [workloads.train] has no node; name some of gpu, or leave it out"),
        (
            8,
            "command = '{batch}'\nwork = 'x'",
            "9: work: 'x' does not select one number (it has no group); put the num",
        ),
        (8, "command = '{batch}'\nwork = '('", "9: work: '(' is not a regular expression"),
        (8, "command = '{batch}'\nwork_sum = true", "9: work_sum is for work; add work = "),
        (8, "command = '{batch}'\nparameters = { x = 1 }", "9: parameters is for a notebook or a reference workload"),
        (8, "command = '{batch}'\npause = 3", "9: pause is for a notebook; leave it out"),
        (
            8,
            "notebook = 'a.ipynb'",
            "8: there is no notebook a.ipynb (looked for in DIR); its path is relative to the st",
        ),
        (8, "notebook = '{batch}.ipynb'", "8: '{batch}.ipynb' has a placeholder (a notebook is fixed); write a worklo"),
        (8, "reference = 'brun'", "8: there is no reference workload 'brun'; did you mean 'burn'? valid: "),
        (8, "reference = 'burn'\nparameters = { sise = 1 }", "9: burn has no parameter 'sise'; did you mean 'size'?"),
        (8, "reference = 'burn'\nparameters = { size = [1] }", "9: size is [1]; give a text, a number, true or false"),
        (8, "reference = 'burn'\nparameters = { size = 0 }", "8: burn: size is '0'; give a whole number from"),
        (
            8,
            "reference = 'burn'\nparameters = { size = '{n}' }",
            "9: the placeholder {n} has no knob; valid: cap, batch",
        ),
        (8, "reference = 'burn'\nkernel = 'x'", "9: kernel is for a notebook; leave it out"),
        (8, "reference = 'burn'\nknobs = { seconds = [5, 'x'] }", "8: burn: seconds is 'x'; give a number from"),
        (
            8,
            "reference = 'burn'\nknobs = { sise = 1 }",
            "9: the knob sise is not used by [workloads.train]; did you mean",
        ),
        (
            8,
            "reference = 'burn'\nknobs = { size = 2 }\nparameters = { size = 3, 'a b' = 4 }",
            "10: size is a knob and a parameter; leave one of them out",
        ),
        (8, "reference = 'burn'\nparameters = { 'a b' = 4 }", "9: 'a b' cannot name a parameter; letters"),
        # nodes
        (9, "[nodes.'a b']", "9: 'a b' cannot name a node type; letters, digits, . _ and -"),
        (10, "usse = 'gpu'", "10: unknown key 'usse' in [nodes.gpu]; did you mean 'uses'? valid: executor, uses,"),
        (10, "uses = 'gpus'", "10: uses is 'gpus'; did you mean 'gpu'? valid: gpu, cpu"),
        (
            10,
            "uses = 'cpu'",
            '3: cap cannot be set for cells on gpu: their workload has no GPU (uses = "cpu"); leave t',
        ),
        (10, "gpus = 0", "3: cap cannot be set for cells on gpu: their workload has no GPU (gpus = 0); leave them out"),
        (10, "uses = 'gpu'\ngpus = 0", "11: gpus is 0 (uses = \"gpu\"); give at least 1, or write uses = 'cpu'"),
        (10, "executor = 'slrum'", "10: there is no executor 'slrum'; did you mean 'slurm'? valid: local, slurm, twin"),
        (
            10,
            "executor = 'local'\ntime = '2h'",
            '11: time is for jobs of a cluster (executor = "local"); leave it out,',
        ),
        (10, "time = 30", "10: time is 30; write it as 30m, 2h, 02:00:00 or 1-12:00:00"),
        (10, "time = '2 hours'", "10: time is '2 hours'; write it as 30m, 2h, 02:00:00 or 1-12:00:00"),
        (10, "time = '00:00:00'", "10: time is '00:00:00'; write it as 30m"),
        (
            10,
            "executor = 'local'\ngpus = 2",
            '11: gpus is for jobs of a cluster (executor = "local"); leave it out (how many GPUs a workload sees',
        ),
        (10, "launch = 'mpirun'", "10: launch is 'mpirun'; did you mean 'srun'? valid: direct, srun"),
        (10, "environment = { A = true }", "10: A is true; give a text, in quotes"),
        (10, "environment = { 'A=' = 'x' }", "10: 'A=' cannot name a variable; letters, digits and _"),
        # the reference
        (1, "reference = 'gpu'", "1: reference is 'gpu'; write it as a table: [reference]"),
        (
            1,
            "reference = { nod = 'gpu' }",
            "1: there is no knob 'nod'; did you mean 'node'? valid: workload, node, cap",
        ),
        (1, "reference = { node = 'cpu' }", "1: there is no node type 'cpu'; did you mean 'gpu'? valid: gpu"),
        (
            1,
            "reference = { workload = 'train' }",
            "1: a workload alone cannot be the reference (different workloads and phases are not compared with each",
        ),
        (1, "reference = { phase = 'x' }", "1: there is no knob 'phase'; valid: workload, node, cap, batch"),
        (1, "reference = { cap = 170 }", "1: no cell has cap 170 W; did you mean "),
        (1, "reference = { batch = 'x' }", "1: no cell has batch x; valid: 256, 512"),
        (1, "reference = { cap = [100, 150] }", "1: the reference has 2 values of cap; name one of them"),
        (1, "reference = { batch = 512 }", "1: no cell has batch 512; take a combination that is not left out"),
    ],
)
def test_each_mistake_is_told_with_its_line(tmp_path: Path, line: int, wrong: str, expected: str) -> None:
    lines = RIGHT.splitlines()
    lines[line - 1] = wrong
    told = said(tmp_path, "\n".join(lines))
    assert any(each.startswith(expected) for each in told.splitlines()), told


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        RIGHT.replace("repeats = 2", "repeats = 0\nidel = 3").replace("[256, 512]", "[]").replace("{batch}", "{batsh}")
    )
    told = said(tmp_path, text.replace('"gpu"', '"gup"') + "tasks = 0\n")
    numbers = [int(re.match(r"\d+", line)[0]) for line in told.splitlines()]  # type: ignore[index]
    assert numbers == [1, 2, 5, 9, 11, 12]
    # A knob that could not be read is not told of a second time where it is named.
    assert "there is no knob 'batch'" not in told


def test_cells_that_lack_what_the_command_names(tmp_path: Path) -> None:
    text = """\
[knobs]
gpus = { values = [1, 2, 8], when = { node = "gpu" } }
[workloads.w]
command = "{gpus}"
[nodes.gpu]
gpus = 4
[nodes.cpu]
"""
    assert said(tmp_path, text).splitlines() == [
        (
            "4: some cells of w on cpu have no knob gpus, which {gpus} stands for; "
            "let gpus hold there too, or leave them out by [[skip]] or nodes = [...]"
        ),
        "6: gpus 8 is more than gpu has (gpus = 4); take fewer, or leave them out by [[skip]]",
    ]


def test_what_is_told_once_is_not_told_again(tmp_path: Path) -> None:
    text = """\
reference = { cap = 100, seconds = 1 }
[knobs]
cap = 100
seconds = 0
gpus = { values = 1, when = { seconds = 0, node = "gpu" } }
[workloads.a]
reference = "burn"
parameters = { size = "{gpus}" }
[workloads.b]
reference = "burn"
[nodes.gpu]
[nodes.cpu]
uses = "cpu"
"""
    told = said(tmp_path, text).splitlines()
    assert [line.partition(":")[0] for line in told] == ["1", "3", "7", "8", "10"], told
    broken = said(tmp_path, text.replace("seconds = 0\n", "seconds = []\n")).splitlines()
    assert broken == ["4: knob seconds: there is no value; give at least one"]


def test_of_many_wrong_values_some_are_told(tmp_path: Path) -> None:
    told = said(tmp_path, RIGHT.replace("batch = 512", "cap = '1:50:1'")).splitlines()
    assert len(told) == 3
    assert told[0] == "6: no cell has cap 1 W; did you mean '100 W'? valid: 100 W, 150 W, 200 W"
    many = RIGHT.replace("100:200:50", "100:200:1").replace("batch = 512", "cap = 300")
    assert said(tmp_path, many).endswith(
        "valid: 191 W, 192 W, 193 W, 194 W, 195 W, 196 W, 197 W, 198 W, 199 W, 200 W, ..."
    )


def test_what_to_write_where_some_node_types_have_no_gpu(tmp_path: Path) -> None:
    text = """\
[workloads.w]
command = "x"
knobs = { clock = 1000 }
[nodes.a]
[nodes.b]
[nodes.cpu-mix]
uses = "cpu"
"""
    assert said(tmp_path, text) == (
        '3: clock cannot be set for cells on cpu-mix: their workload has no GPU (uses = "cpu"); '
        'write clock = { values = ..., when = { node = ["a", "b"] } }, or leave them out by [[skip]]'
    )


@pytest.mark.system  # pure, and slow
def test_a_matrix_of_which_nearly_all_is_skipped_is_not_looked_at_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_workloads, "MAX_CELLS_TRIED", 1000)  # so that the test is a quick one
    text = """\
[knobs]
a = "1:10000:1"
b = "1:10000:1"
[[skip]]
a = "1:9999:1"
[workloads.w]
command = "{a} {b}"
"""
    assert said(tmp_path, text) == (
        "1: up to 100000000 cells x 3 are too many slots (at most 100000 are taken); give fewer values or repeats"
    )


def test_each_problem_is_one_line_whatever_stands_in_the_file(tmp_path: Path) -> None:
    told = said(tmp_path, RIGHT.replace("batch = 512", 'batch = "0\\u001e\\u001b[1m\\n0"'))
    assert told == "6: no cell has batch 0\\x1e\\x1b[1m\\n0; valid: 256, 512"


@every_row(
    ("text", "expected"),
    [
        (
            f"a = {'[' * 2000}{']' * 2000}",
            "not a TOML file (its lists or tables are nested too deeply); nest them less deeply",
        ),
        ("a = 1\nb = [", "2: not a TOML file (Invalid value); correct that line"),
        (
            "a = 1\nb c",
            "2: not a TOML file (Expected '=' after a key in a key/value pair, at character 3); correct that line",
        ),
        ("a = 1\na = 2\n", "2: not a TOML file (Cannot overwrite a value, at character 6); correct that line"),
        ('knobs = 3\n[workloads.a]\ncommand = "x"', "1: knobs is 3; write it as a table: [knobs]"),
        ("", "there is no workload; add [workloads.NAME] with command = ..."),
        ("workloads = {}", "1: there is no workload; add [workloads.NAME] with command = ..."),
        ("workloads = 1", "1: workloads is 1; write it as a table: [workloads]"),
        ("[workloads]\nw = 1", "2: w is 1; write it as a table: [workloads.w]"),
    ],
)
def test_files_that_are_hardly_any(tmp_path: Path, text: str, expected: str) -> None:
    assert said(tmp_path, text).strip().splitlines()[0].startswith(expected)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"a = 1\nb = '\xff'\n")
    (tmp_path / "my study.toml").write_text("[workloads.a]\ncommand = 'x'\n", encoding="utf-8")
    for name, expected in (
        ("bytes.toml", "bytes.toml:2: not a TOML file (it is not UTF-8); save it as UTF-8"),
        ("", "cannot read the study file (it is a folder, not a regular file); name a file of TOML"),
        ("no.toml", "there is no such study file (study files there: bytes.toml, my study.toml); name another"),
        ("none/no.toml", "there is no such study file; name another"),
        ("my study.toml", "'my study' cannot name a study: the file's name; add name = \"...\" at the top"),
    ):
        with pytest.raises(ConfigError, match=re.escape(expected)):
            read_study(tmp_path / name)


WHOLE = tomllib.loads(r"""
name = "x"
repeats = 5
seed = 7
goals = ["energy", "eds:1.5"]
reference = { node = "gpu", batch = 256, phase = "train", workload = "train" }
idle = "10s"
cool = "45C"
meters = ["nvml"]
estimate = true
rated_cpu = 225
knobs.cap = { values = "200:400:100", when = { node = "gpu", batch = [256] } }
knobs.batch = [256, 512]
knobs.seconds = [1, 2]
skip = [{ node = ["cpu"], batch = 512 }, { workload = "burn", seconds = 2 }]
[workloads.train]
command = "python train.py --batch {batch} {epochs}"
phases = ["train", "predict"]
nodes = ["gpu", "cpu"]
work = 'samples: (\d+)'
knobs = { epochs = [{ values = 3, when = { node = "cpu" } }, { values = [30] }] }
timeout = "2h"
[workloads.burn]
reference = "burn"
parameters = { size = 64, processes = "{gpus}" }
knobs = { gpus = [2] }
nodes = "gpu"
[nodes.gpu]
partition = "accelerated"
gpus = 4
time = "1-02:03:04"
options = ["--mem=0"]
[nodes.cpu]
executor = "local"
uses = "cpu"
environment = { OMP_NUM_THREADS = 76 }
""")
WORDS = (
    "gpu",
    "cpu",
    "local",
    "slurm",
    "train",
    "burn",
    "10s",
    "2h",
    "100:200:50",
    "60%",
    "run {batch}",
    "{x}",
    "0",
    "",
)
PLAIN = st.sampled_from(WORDS) | st.integers(-2, 600) | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=5)
KEYS = [key for kind in (StudyKeys, WorkloadKeys, NodeKeys) for key in describe_keys(kind)]
NAMES = st.sampled_from([*KEYS, "train", "gpu", "batch", "cap", "when", "values", "x y"])
ANY = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(NAMES, PLAIN | st.lists(PLAIN, max_size=2), max_size=3)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*at, key)
        yield from places(item, (*at, key))


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a file that was right before some of its values were replaced, added or left out."""
    content = copy.deepcopy(WHOLE)
    for _ in range(draw(st.integers(0, 3))):
        *way, last = draw(st.sampled_from(list(places(content))))
        holder: Any = content
        for key in way:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "add", "leave out"]))
        if how == "leave out":
            del holder[last]
        elif how == "add" and isinstance(holder, dict):
            holder[draw(NAMES)] = draw(ANY)
        else:
            holder[last] = draw(ANY)
    return content


@pytest.mark.system  # pure, and slow
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(files())
def test_any_file_is_read_or_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    check(tmp_path / "any.toml", content)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@settings(max_examples=800, suppress_health_check=list(HealthCheck), deadline=None)
@given(files())
def test_many_files_are_read_or_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    check(tmp_path / "any.toml", content)


def check(file: Path, content: dict[str, Any]) -> None:
    file.write_text(
        "".join(f"{key} = {format_toml(value)}\n" for key, value in content.items()), encoding="utf-8", newline=""
    )
    told = ""
    try:
        assert read_study(file).plan.cells
    except ConfigError as error:
        told = str(error)
    event("refused" if told else "read")
    assert all(line.startswith(f"{file}:") for line in told.splitlines())
