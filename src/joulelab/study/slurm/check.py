"""Check before anything runs what Slurm would refuse: partitions, features, limits, and sbatch's own judgement."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, MeterError
from joulelab.study.slurm import options
from joulelab.study.slurm.job_queue import JobQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.nodes import NodeType

_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_FEATURE = re.compile(r"[A-Za-z_][\w.-]*")


def check(nodes: Mapping[str, NodeType], environ: Mapping[str, str]) -> list[str]:
    """Return what is worth knowing beforehand of the node types that are Slurm's, in words. Raises ConfigError."""
    wanted = {name: node for name, node in nodes.items() if node.executor == "slurm"}
    if not wanted:
        return []
    jobs = JobQueue(environ)
    try:
        settings, partitions = jobs.read_settings(), jobs.read_partitions()
        notes = [note for name, node in wanted.items() for note in _check_node(jobs, name, node, partitions)]
    except ConfigError:
        raise
    except MeterError as error:
        then = "run it on a login node of the cluster, when Slurm answers"
        raise ConfigError(
            "Slurm cannot be used", where=error.where, why=f"{error.what}: {error.why}", next=then
        ) from error
    return notes + _check_settings(settings)


def _check_node(jobs: JobQueue, name: str, node: NodeType, partitions: Mapping[str, Mapping[str, str]]) -> list[str]:
    where = f"node type {name}"
    partition = node.options.get("partition")
    for each in str(partition).split(",") if partition else []:
        if each not in partitions:
            there = ", ".join(sorted(partitions))
            raise ConfigError(
                f"there is no partition {each!r}", where=where, why=f"there are {there}", next="see sinfo"
            )
        _check_time(where, node, each, partitions[each])
    constraint = node.options.get("constraint")
    if constraint:
        known = jobs.list_features(partition)
        for feature in _FEATURE.findall(str(constraint)):
            if feature not in known:
                why = f"there are {', '.join(sorted(known))}" if known else "its nodes have no features"
                raise ConfigError(
                    f"no node has the feature {feature!r}", where=where, why=why, next="see sinfo -o '%P %f'"
                )
    with tempfile.TemporaryDirectory(prefix="joulelab-") as folder:
        script = Path(folder) / "script.sh"
        script.write_text(options.make_script(node, Path(folder), "test"))
        jobs.test_options([*options.list_sbatch_options(node), str(script)], where)
    notes = []
    if not node.options.get("exclusive", True):
        notes.append(f"{where}: not exclusive: other jobs on its nodes are in what is measured there")
    if node.options.get("time") is None:
        notes.append(f"{where}: no time limit is given: the partition's counts")
    return notes


def _check_time(where: str, node: NodeType, partition: str, shown: Mapping[str, str]) -> None:
    limit = _seconds(shown.get("MaxTime", ""))
    wanted = node.options.get("time")
    if limit is not None and isinstance(wanted, (int, float)) and wanted > limit:
        what = f"the time {options.format_time_limit(wanted)} is more than the partition allows"
        raise ConfigError(what, where=where, why=f"MaxTime of {partition} is {shown['MaxTime']}", next="give less time")


def _check_settings(settings: Mapping[str, str]) -> list[str]:
    notes = []
    wait = re.match(r"\d+", settings.get("KillWait", ""))
    if wait and int(wait[0]) < 15:
        notes.append(
            f"slurm: KillWait is {wait[0]} s: a job that is cancelled may be killed before its caps are put back"
        )
    if settings.get("AccountingStorageType", "").endswith(("/none", "(null)")):
        notes.append(
            "slurm: this cluster keeps no accounting: what became of jobs is known by squeue only, for a while"
        )
    return notes


def _seconds(text: str) -> int | None:
    """Return a time limit in s, None where there is none."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
