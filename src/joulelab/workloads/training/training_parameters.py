"""Define the parameters of trainings, check them, and make the commands of trainings and notebooks of them."""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run import notebook
from joulelab.run.workload_registry import read_number, read_whole_number, require_libraries
from joulelab.workloads.data.source import AUTO, FILES, choose_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What every training takes; a workload adds its own, and other defaults.
COMMON = {
    "data": (
        "auto",
        "a folder with the published files, synthetic-files or synthetic-memory; auto: $JOULELAB_DATA, else synthetic",
    ),
    "device": ("auto", "cpu, cuda, or auto: the GPUs if there are any"),
    "ranks": ("0", "processes on this node, started by torchrun; 0: one for each GPU, one on CPUs"),
    "nodes": ("0", "nodes that train together; start it on each of them; 0: the nodes of srun or mpirun, else one"),
    "rendezvous": ("", "HOST:PORT of the first node, where several train together; found automatically in a Slurm job"),
    "precision": ("fp32", "fp32 (TF32 switched off), tf32 or bf16 (autocast)"),
    "threads": ("0", "threads of each rank on CPUs; 0: OMP_NUM_THREADS, else its share of the physical cores"),
    "workers": ("2", "processes of each rank that load data"),
    "worker_starts": ("once", "once: they stay until the end; each-epoch: each epoch and validation starts its own"),
    "seed": ("0", "where random numbers begin"),
    "deterministic": ("no", "yes: only algorithms that give the same result each time"),
    "warmup_steps": ("2", "steps before the first that counts, in a phase of their own; they do not train"),
    "max_steps": ("0", "stop training, validation and prediction after this many steps each; 0: no limit"),
    "max_seconds": ("0", "stop training, and prediction, after this many seconds each; 0: no limit"),
    "save": ("temporary", "the file to save the model to; temporary: deleted afterwards; no: it is not saved"),
}
# What a training takes whose quality is one figure, and whose model is loaded whole.
JUDGED = {
    "load": ("no", "a file that save= wrote: the model begins with it (with epochs=0 it only predicts); no: none"),
    "target": ("0", "quality after an epoch at which the training ends; 0: no such end"),
    "patience": ("0", "end the training after this many epochs without a better quality; 0: no such end"),
    "predictions": ("no", "the CSV file to write predictions to; temporary: deleted afterwards; no: none is written"),
}
WORKER_STARTS = ("once", "each-epoch")
DEVICES, PRECISIONS, YES_NO = ("auto", "cpu", "cuda"), ("fp32", "tf32", "bf16"), ("yes", "no")
MOST_TEMPORARY = 70  # letters of the folder for temporary files: a socket in it has 108 with its own name
PREPARE = "--prepare"  # the first word of a program that only makes its data


def make_training_command(
    module: str,
    known: Mapping[str, tuple[str, str]],
    parameters: Mapping[str, str],
    *,
    check: Callable[[Mapping[str, str]], object] | None = None,
    needs: Sequence[str] = ("torch",),
) -> list[str]:
    """Return the words that start a training; `check` reads the workload's own parameters, `needs` are libraries.

    Raises ConfigError, MissingDependency.
    """
    check_common(parameters)
    if check is not None:
        check(parameters)
    require_libraries(module.rpartition(".")[2].replace("_", "-"), *needs)
    return [sys.executable, "-m", module, *(f"{key}={parameters[key]}" for key in known)]


def make_preparation(
    module: str, parameters: Mapping[str, str], folder: str, *, otherwise: str = FILES
) -> list[str] | None:
    """Return the command that writes the files of a stand-in, None where the training reads other data.

    `folder` is the name of the published data below $JOULELAB_DATA, `otherwise` the stand-in where it is missing.
    Raises ConfigError.
    """
    data = parameters["data"]  # a folder and a real substitute are there already
    if data not in (AUTO, FILES) or choose_source(data, (folder,), otherwise=otherwise) != FILES:
        return None
    return [sys.executable, "-m", module, PREPARE, *(f"{key}={value}" for key, value in parameters.items())]


def list_notebook_parameters(base: Any, same: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the parameters of a notebook: those that it takes of its workload, and its own."""
    return {
        **{key: base.PARAMETERS[key] for key in same},
        "pause": ("0", "seconds between cells, as people need to look and think"),
        "out": ("", "file for a copy of the notebook with its outputs; empty: none"),
    }


def list_notebook_notes(base: Any, file: Path, published: str) -> tuple[str, ...]:
    """Return the notes of a notebook and of its workload; `published` are the energy and time that the study found."""
    return (
        "One device, one process: the study's notebook ran on one GPU, all cells one after another.",
        f"The study's notebook took {published} on a node with an A100; 300 W more for each second that it waits.",
        f"By hand: copy {file} and open the copy with jupyter lab; its first cell shows how to measure it.",
        *base.NOTES,
    )


def list_base_parameters(base: Any, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return all parameters of a notebook's workload: those of the notebook, and the defaults of the others."""
    defaults = {key: default for key, (default, _) in base.PARAMETERS.items()}
    return defaults | {key: value for key, value in parameters.items() if key in defaults}


def start_notebook(
    name: str,
    file: Path,
    base: Any,
    same: Sequence[str],
    parameters: Mapping[str, str],
    *,
    needs: Sequence[str],
) -> list[str]:
    """Return the words that start a training as a notebook; `base` is its workload, `same` what it takes of that.

    Raises ConfigError, MissingDependency.
    """
    whole_set = list_base_parameters(base, parameters)
    check_common(whole_set)
    base.read(whole_set)
    for key in ("epochs", "copies", "repeats"):  # cells follow each other: none can be left out
        if key in parameters:
            read_whole_number(parameters, key, least=1, most=10**6)
    pause_s = read_number(parameters, "pause", least=0, most=notebook.MOST_PAUSE_S)
    require_libraries(name, *needs)
    out = Path(parameters["out"]).expanduser() if parameters["out"] else None
    values = {key: parameters[key] for key in same}
    return notebook.make_notebook_command(notebook.NotebookRequest(file, values, out, pause_s))


def check_common(parameters: Mapping[str, str]) -> None:
    """Refuse wrong values of what every training takes. Raises ConfigError."""
    read_choice(parameters, "device", DEVICES)
    read_choice(parameters, "precision", PRECISIONS)
    read_choice(parameters, "deterministic", YES_NO)
    read_choice(parameters, "worker_starts", WORKER_STARTS)
    for key, most in (("ranks", 1024), ("threads", 4096), ("workers", 1024), ("warmup_steps", 1000)):
        read_whole_number(parameters, key, least=0, most=most)
    read_whole_number(parameters, "seed", least=0, most=2**31)
    if int(parameters["workers"]) and len(tempfile.gettempdir()) > MOST_TEMPORARY:
        why = f"{tempfile.gettempdir()} is too long for the sockets of loading processes: they would wait for ever"
        raise ConfigError("data cannot be loaded", why=why, next="set TMPDIR=/tmp, or give workers=0")
    read_whole_number(parameters, "max_steps", least=0, most=10**9)
    read_number(parameters, "max_seconds", least=0, most=86400 * 365)
    if "target" in parameters:
        read_number(parameters, "target", least=0, most=10**6)
        patience = read_whole_number(parameters, "patience", least=0, most=10**6)
        if (float(parameters["target"]) or patience) and parameters["epochs"] == "0":
            why = "without a training there is nothing to end"
            raise ConfigError("target and patience need epochs", why=why, next="leave them out, or give epochs=1")
        if parameters["load"] != "no" and not zipfile.is_zipfile(file := Path(parameters["load"]).expanduser()):
            why = "it is not a model that save= wrote" if file.is_file() else "there is no such file"
            raise ConfigError(f"load is {parameters['load']!r}", why=why, next="name one, or no")
    read_whole_number(parameters, "nodes", least=0, most=100_000)
    if parameters["rendezvous"] and not re.fullmatch(r"[^\s:]+:\d{1,5}", parameters["rendezvous"]):
        raise ConfigError(f"rendezvous is {parameters['rendezvous']!r}", next="write it as HOST:PORT")


def check_amounts(parameters: Mapping[str, str], train: str, predict: str) -> None:
    """Refuse a training without epochs and predictions; one of both may be 0. Raises ConfigError."""
    if (
        read_whole_number(parameters, train, least=0, most=10**6)
        + read_whole_number(parameters, predict, least=0, most=10**6)
        == 0
    ):
        raise ConfigError(f"{train} and {predict} are 0", why="nothing is left to do", next="give one of them")


def check_accuracy(parameters: Mapping[str, str]) -> None:
    """Refuse a target that no accuracy reaches: it is a share, not percent. Raises ConfigError."""
    target = float(parameters["target"])
    if target > 1:
        then = f"give target={target / 100:g}" if target <= 100 else "give a number from 0 to 1"
        raise ConfigError(f"target is {parameters['target']}", why="an accuracy is 0 to 1", next=then)


def read_choice(parameters: Mapping[str, str], key: str, valid: Sequence[str]) -> str:
    """Return a parameter that is one of some words. Raises ConfigError."""
    if parameters[key] not in valid:
        raise ConfigError(f"{key} is {parameters[key]!r}", next=f"give one of: {', '.join(valid)}")
    return parameters[key]
