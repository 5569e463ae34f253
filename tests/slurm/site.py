"""Answer as Slurm's programs do for studies: by their names, without a Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.study.bench import make_study

from joulelab.instruments.slurm.client import Answer
from joulelab.study.executors.slurm import SlurmExecutor
from joulelab.study.matrix import NodeType
from joulelab.study.slurm.job_queue import JobQueue
from joulelab.study.slurm.job_watch import JobWatch

if TYPE_CHECKING:
    from pathlib import Path

DOWN = Answer(1, "", "sacct: error: Problem talking to the database: Connection refused")
AWAY = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
NONE = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
NO_DATABASE = Answer(1, "", "Slurm accounting storage is disabled")
CONFIG = Answer(0, "MaxArraySize = 100\nClusterName = test\n", "")


class Site:
    """Be a Slurm that answers by the program's name; a list is answered one by one, its last from then on."""

    def __init__(self, **answers):
        self.answers = {"scontrol": CONFIG, "sacct": Answer(0, "", ""), "squeue": Answer(0, "", "")} | answers
        self.asked: list[tuple[str, ...]] = []
        self.t = 0.0

    def run(self, words, timeout_s, keep=()):
        self.asked.append(tuple(words))
        answer = self.answers[words[0]]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        return Answer(0, answer, "") if isinstance(answer, str) else answer

    def now(self):
        return self.t

    def jobs(self):
        return JobQueue({}, run=self.run)

    def watch(self):
        return JobWatch(self.jobs(), self.now)

    def count(self, program):
        return sum(words[0] == program for words in self.asked)


def executor(folder: Path, site: Site, n: str = "1,2,3,4", **more):
    """Return an executor of a made-up site and the slots of a study."""
    study = make_study(folder, "true", "{n}", knobs={"n": n})
    nodes = {"local": NodeType("local", "slurm", options=more)}
    opened = SlurmExecutor(site.jobs(), nodes, study.folder, now=site.now)
    return opened, [study.get_slot_folder(key, 1) for key in sorted(study.read_cells())]
