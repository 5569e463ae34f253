"""Turn a node type into the options of sbatch, and write the script of a job."""

from __future__ import annotations

import math
import shlex
import sys
from typing import TYPE_CHECKING, Any

from joulelab.study.nodes import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.study.nodes import NodeType

# Options of a node type and those of sbatch that they are.
PLAIN = {
    "partition": "--partition",
    "constraint": "--constraint",
    "nodes": "--nodes",
    "tasks": "--ntasks-per-node",
    "cpus": "--cpus-per-task",
    "account": "--account",
    "qos": "--qos",
}
SCRIPT = """\
#!/bin/bash
# Run slots of a study, each in a task of its own. Written by joulelab; Slurm keeps a copy of its own.
# What is written meanwhile is not what the slot tells.
exec 3>&1 1>&2
# srun does not take it from the job by itself.
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi
{setup}
study={study}
slot=$(sed -n "$((${{SLURM_ARRAY_TASK_ID:-0}} + 1))p" "$study"/jobs/{token}/slots.txt)
# Signals of Slurm reach the slot itself.
exec {python} -P -W ignore -m joulelab.study.slot "$study/$slot" 1>&3 3>&-
"""


def list_sbatch_options(node: NodeType) -> list[str]:
    """Return sbatch's options for a node type; words of the study file come last, and so count."""
    given: Mapping[str, Any] = {**DEFAULT_OPTIONS, **node.options}
    found = [f"{option}={given[key]}" for key, option in PLAIN.items() if given.get(key) is not None]
    if given.get("gpus"):
        found.append(f"--gres=gpu:{given['gpus']}")
    if given.get("time") is not None:
        found.append(f"--time={format_time_limit(given['time'])}")
    if given["exclusive"]:
        found.append("--exclusive")
    return [*found, *(str(word) for word in given.get("options") or ())]


def format_time_limit(time: float | str) -> str:
    """Return s as Slurm takes them, rounded up: hours:minutes:seconds."""
    if isinstance(time, str):
        return time
    minutes, seconds = divmod(math.ceil(time), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def make_script(node: NodeType, study: Path, token: str) -> str:
    """Return the script of a job."""
    setup = "\n".join(str(line) for line in node.options.get("setup") or ())
    return SCRIPT.format(setup=setup, study=shlex.quote(str(study)), token=token, python=shlex.quote(sys.executable))


def escape_percent(file: Path) -> str:
    """Return a file's name as sbatch takes it, which replaces what follows a %."""
    return str(file).replace("%", "%%")
