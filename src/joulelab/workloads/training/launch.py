"""Run a training workload: find its ranks, or start them by torchrun; end it by signals. torch is imported late."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joulelab
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.run.workload_registry import merge_parameters, read_pairs, refuse_missing_library
from joulelab.workloads.training.training_parameters import PREPARE, check_common

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from joulelab.workloads.training.training_task import Task

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # variables that torchrun sets for each rank
TORCHRUN = "TORCHELASTIC_RUN_ID"  # is set in processes that torchrun started, not in its own
# Variables of mpirun: rank, number of ranks, rank on the node, number of ranks on the node.
MPI_VARIABLES = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
)
MPIRUN_ADDRESS = "OMPI_MCA_orte_hnp_uri"  # of Open MPI's mpirun: 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911
SPECIAL_STEPS = 0xFFFFFFF0  # Slurm's step numbers from here on are batch scripts and shells
FIRST_PORT, PORTS = 10_000, 20_000  # below the ports that Linux gives to clients
FAILED, WRONG = 1, 2
WAIT_S, NOTICE_S, RETRY_S = 300.0, 10.0, 0.5  # for the host where ranks meet; when that is told; between attempts


def run_training(
    name: str,
    known: Mapping[str, tuple[str, str]],
    task: Callable[[Mapping[str, str]], Task],
    presets: Mapping[str, Mapping[str, str]] | None = None,
    words: Sequence[str] | None = None,
) -> int:
    """Train as words ask for (those of this program unless given); return the exit code."""
    words = sys.argv[1:] if words is None else words
    is_preparation = words[:1] == [PREPARE]
    words = words[1:] if is_preparation else words

    def run() -> None:
        given = merge_parameters(name, known, read_pairs(words, where=name), presets)
        check_common(given)
        if is_preparation:
            task(given)
            return
        become_ranks(given, words)
        with contextlib.ExitStack() as set_up:
            set_up.enter_context(joulelab.phase("set-up"))
            try:
                from joulelab.workloads.training.loop import run_training_loop
            except ImportError as error:
                refuse_missing_library(name, error.name or "torch")
            run_training_loop(name, task, given, set_up)

    return run_workload(name, run)


def run_workload(name: str, run: Callable[[], None]) -> int:
    """Run a workload; return the exit code. After a signal to end it clears up, and then ends by that signal."""
    before = signal.signal(signal.SIGTERM, _raise_stop)
    number = 0
    try:
        run()
    except JoulelabError as error:
        sys.stderr.write(f"joulelab: {name}: {_shorten_error(error)}\n")
        return WRONG if isinstance(error, ConfigError) else FAILED
    except StopSignal as stop:
        number = stop.number
    except KeyboardInterrupt:
        number = signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)
    if number:
        gc.collect()  # so that processes that load data end before us
        _end_by_signal(number)
    return 0


class StopSignal(BaseException):
    """Report a signal that asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _raise_stop(number: int, _frame: Any) -> NoReturn:
    raise StopSignal(number)


def _end_by_signal(number: int) -> NoReturn:
    """End by a signal, so that the parent sees which one it was."""
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _shorten_error(error: JoulelabError) -> str:
    """Return the text of an error; one of a loading process comes with the whole trace of that process."""
    text = str(error)
    if "Original Traceback" not in text:
        return text
    return text.strip().splitlines()[-1].partition(": ")[2] or text


def become_ranks(given: Mapping[str, str], words: Sequence[str]) -> None:
    """Become one of several ranks: that of srun or mpirun, or torchrun where no launcher has started ranks.

    Raises ConfigError.
    """
    if is_launched(os.environ):
        return
    launch, asked, nodes = find_launch(os.environ), int(given["ranks"]), int(given["nodes"])
    if launch is not None and nodes not in (0, launch.nodes):
        if nodes > 1:
            why = f"{launch.nodes} are started"
            raise ConfigError(f"nodes is {nodes}", why=why, next="start it on each node, or leave nodes out")
        launch = None  # each by itself
    ranks = asked or (1 if given["device"] == "cpu" else max(_count_gpus(), 1))
    if launch is not None:
        if launch.on_node > 1 and asked not in (0, launch.on_node):
            why = f"{launch.on_node} are started on each node"
            raise ConfigError(f"ranks is {asked}", why=why, next="start one process on each node, or leave ranks out")
        nodes = launch.nodes
        if launch.on_node > 1 or ranks == 1:
            _adopt_launch(launch, given["rendezvous"])
            return
    nodes = nodes or 1
    if ranks > 1 or nodes > 1:
        rendezvous = find_rendezvous(given["rendezvous"], launch, os.environ) if nodes > 1 else ""
        threads = count_threads(int(given["threads"]), ranks, os.environ)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # torchrun would set 1, and say so at length
        _run_torchrun(ranks, nodes, rendezvous, launch, words)


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Hold the place of this process among several that srun or mpirun started, one for each rank or node.

    `by_slurm`: srun started it.
    """

    rank: int
    count: int
    local: int
    on_node: int
    by_slurm: bool = False

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return -(-self.count // self.on_node)


def find_launch(environ: Mapping[str, str]) -> LaunchPlace | None:
    """Return the place of this process among those of mpirun or srun, None where it is the only one."""

    def read_numbers(names: Sequence[str]) -> list[int]:
        texts = [environ.get(name, "") for name in names]
        return [int(text) for text in texts] if all(text.isdecimal() for text in texts) else []

    place = None
    for names in MPI_VARIABLES:
        if place is None and (found := read_numbers(names)):
            place = LaunchPlace(found[0], found[1], found[2], max(found[3], 1))
    step = read_numbers(
        ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES")
    )
    if place is None and step and step[0] < SPECIAL_STEPS:
        place = LaunchPlace(step[1], step[2], step[3], max(-(-step[2] // max(step[4], 1)), 1), by_slurm=True)
    return place if place is not None and place.count > 1 else None


def find_rendezvous(given: str, launch: LaunchPlace | None, environ: Mapping[str, str]) -> str:
    """Return HOST:PORT where all ranks meet: as given, the first host of a Slurm job, or the host of mpirun.

    Raises ConfigError where it is not known.
    """
    if given:
        return given
    by_slurm = launch is not None and launch.by_slurm
    hosts = (by_slurm and environ.get("SLURM_STEP_NODELIST")) or environ.get("SLURM_JOB_NODELIST", "")
    job = environ.get("SLURM_JOB_ID", "")
    if hosts and job.isdecimal():
        step = int(environ["SLURM_STEP_ID"]) if by_slurm else 0
        return f"{find_first_host(hosts)}:{FIRST_PORT + (int(job) * 16 + step) % PORTS}"
    where = re.match(r"(\d+)\.\d+;tcp://([\d.]+)", environ.get(MPIRUN_ADDRESS, ""))
    if where is not None and launch is not None and (launch.rank > 0 or _is_own_address(where[2])):
        return f"{where[2]}:{FIRST_PORT + int(where[1]) % PORTS}"
    why = "several nodes train together, and the address of the first is unknown"
    if where is not None and launch is not None:
        why = f"rank 0 does not run on the node of mpirun, {where[2]}"
    then = (
        "give rendezvous=HOST:PORT on each node: the host of rank 0 and a free port; or start it by srun in a Slurm job"
    )
    raise ConfigError("there is no rendezvous", why=why, next=then)


def find_first_host(hosts: str) -> str:
    """Return the first host of a list as Slurm writes it: `gpu[03-05,9],login1` begins with gpu03."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else "")


def _is_own_address(host: str) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, 0))
        return True
    return False


def find_own_address(rendezvous: str) -> str:
    """Return the address by which other nodes reach this one; its host name may be unknown to them."""
    host, _, port = rendezvous.rpartition(":")
    if not _is_own_address(host):
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing
            return str(probe.getsockname()[0])
    return host


def wait_for_host(rendezvous: str, wait_s: float = WAIT_S) -> None:
    """Wait until the host where ranks meet answers: torch would wait in C++, where no signal ends it.

    Raises ConfigError where it does not answer in time.
    """
    host, _, port = rendezvous.rpartition(":")
    began, is_told = time.monotonic(), False
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=max(RETRY_S, min(wait_s, NOTICE_S))).close()
        except OSError as error:
            why = error.strerror or str(error)
        else:
            return
        waited_s = time.monotonic() - began
        if waited_s >= wait_s:
            then = "start the first node, too; or give rendezvous=HOST:PORT of a host that all nodes reach"
            why = f"{why}, for {wait_s:.0f} s"
            raise ConfigError(f"the first node, {host}, cannot be reached", where=rendezvous, why=why, next=then)
        if waited_s >= NOTICE_S and not is_told:
            is_told = True
            sys.stderr.write(f"joulelab: waiting for the first node, {rendezvous} ({why})\n")
        time.sleep(RETRY_S)


@contextlib.contextmanager
def end_at_once() -> Iterator[None]:
    """Let signals end this process without Python's help: while torch waits in C++ no handler of Python's runs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number, handler in before.items():
            if callable(handler):  # not where it is ignored
                signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _adopt_launch(launch: LaunchPlace, rendezvous: str) -> None:
    """Set the variables of torchrun for a rank that mpirun or srun started. Raises ConfigError."""
    host, _, port = find_rendezvous(rendezvous, launch, os.environ).rpartition(":")
    numbers = {"RANK": launch.rank, "WORLD_SIZE": launch.count}
    numbers |= {"LOCAL_RANK": launch.local, "LOCAL_WORLD_SIZE": launch.on_node}
    os.environ.update({name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": host})
    os.environ["MASTER_PORT"] = port


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process as one of several ranks."""
    return all(name in environ for name in LAUNCHED)


def count_threads(
    asked: int,
    ranks: int,
    environ: Mapping[str, str],
    cpus: Collection[int] | None = None,
    root: Path = Path("/sys/devices/system/cpu"),
) -> int:
    """Return the threads of one rank of a node: as asked for, by OMP_NUM_THREADS, or its share of the physical cores.

    `cpus` are the logical CPUs that this process may use (its affinity unless given); two of one core count once.
    `ranks` are those that share them.
    """
    by_environ = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list is by level of nesting
    if asked or (by_environ.isdecimal() and int(by_environ)):
        return asked or int(by_environ)
    cores = set()
    for cpu in os.sched_getaffinity(0) if cpus is None else cpus:
        try:
            cores.add((root / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(f"cpu {cpu}")  # not known: it counts as a core
    return max(len(cores) // max(ranks, 1), 1)


def count_sharers(own: tuple[object, Collection[int]], places: Iterable[tuple[object, Collection[int]]]) -> int:
    """Return how many of all ranks may use a CPU that this one may use; a place is a node and an affinity there.

    Where srun or mpirun binds each rank to its share of a node it is 1.
    """
    node, cpus = own
    return sum(other == node and not set(cpus).isdisjoint(there) for other, there in places)


def drop_torchrun_threads(
    environ: Mapping[str, str], ancestors: Iterable[Mapping[str, str]] | None = None
) -> Mapping[str, str]:
    """Return the environment without OMP_NUM_THREADS where torchrun has set it, not the user.

    torchrun sets 1 for several ranks of a node if it finds no value. It starts with the environment of the user:
    `ancestors` are the environments that the processes above this one started with, the nearest first.
    """
    if TORCHRUN not in environ or environ.get("OMP_NUM_THREADS") != "1":
        return environ
    above = _start_environments() if ancestors is None else ancestors
    launcher = next((one for one in above if TORCHRUN not in one), environ)
    return environ if "OMP_NUM_THREADS" in launcher else {k: v for k, v in environ.items() if k != "OMP_NUM_THREADS"}


def _start_environments() -> Iterator[Mapping[str, str]]:
    import psutil

    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().parents():
            yield process.environ()  # as it was at the start of the process, without later changes


def _count_gpus() -> int:
    try:
        import torch
    except ImportError:
        refuse_missing_library("the training", "torch")
    return int(torch.cuda.device_count())


def _run_torchrun(
    ranks: int, nodes: int, rendezvous: str, launch: LaunchPlace | None, words: Sequence[str]
) -> NoReturn:
    """Start the ranks and watch them; end by a signal that we get, or with the exit code of the first that failed."""
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={rendezvous}", "--rdzv-id=joulelab"] if nodes > 1 else []
    where += [f"--local-addr={find_own_address(rendezvous)}"] if nodes > 1 else []
    if where and launch is not None:  # the name of a node may be another than that of its host
        where.append(f"--rdzv-conf=is_host={int(launch.rank == 0)}")
    with joulelab.phase("launch"):
        try:
            from torch.distributed.elastic.multiprocessing.api import SignalException
            from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
            from torch.distributed.run import main as torchrun
        except ImportError as error:
            refuse_missing_library("the training", error.name or "torch")
        if nodes > 1 and not (_is_own_address(rendezvous.rpartition(":")[0]) if launch is None else launch.rank == 0):
            wait_for_host(rendezvous)
    with tempfile.TemporaryDirectory(prefix="joulelab-ranks-") as folder:  # torchrun's own would stay
        argv = [*(where or ["--standalone"]), f"--log-dir={folder}", f"--nnodes={nodes}", f"--nproc-per-node={ranks}"]
        try:
            torchrun([*argv, "-m", _find_module(), *words])
        except SignalException as stop:
            raise StopSignal(int(stop.sigval)) from None
        except ChildFailedError as failed:
            code = int(failed.get_first_failure()[1].exitcode)
            sys.exit(code if code >= 0 else 128 - code)
    sys.exit(0)


def _find_module() -> str:
    """Return the name of the module that runs as this program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        raise ConfigError("several ranks need a module", why="it runs as a file", next="start it as python -m MODULE")
    return str(spec.name)
