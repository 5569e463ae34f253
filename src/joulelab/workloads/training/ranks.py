"""Train on several ranks: who we are, what we compute on, what all have in common. One process is one rank of one."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from joulelab.core.clock import read_boot_id
from joulelab.core.errors import ConfigError
from joulelab.core.marks import read_local_rank
from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.run import marking
from joulelab.run.run_options import HOST_VARIABLE
from joulelab.workloads.training.launch import (
    TORCHRUN,
    count_sharers,
    count_threads,
    drop_torchrun_threads,
    end_at_once,
    is_launched,
    wait_for_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulelab.workloads.training.training_task import Task

T = TypeVar("T")
TIMEOUT = dt.timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Hold this process's number among all and on its node, how many there are, and the device it computes on."""

    rank: int
    local: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Return whether this is the rank that prints for all."""
        return self.rank == 0

    def share_batch(self, batch: int) -> int:
        """Return this rank's part of a batch. Raises ConfigError where it cannot be divided."""
        if batch % self.count:
            why = f"{batch} samples cannot be divided over {self.count} ranks"
            raise ConfigError("the batch does not fit", why=why, next=f"choose a multiple of {self.count}")
        return batch // self.count

    def place_model(self, model: torch.nn.Module, task: Task, precision: str) -> torch.nn.Module:
        """Put a model where it is trained: on the device, copied to all ranks or divided over them."""
        if task.fill is None:
            model = model.to(self.device)
        if self.count > 1 and task.sharded:
            model = _shard_model(model, task.sharded, precision)
        if task.fill is not None:  # it was built without values
            task.fill(model.to_empty(device=self.device))
        if self.count == 1 or task.sharded:
            return model
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def sum_amounts(self, amounts: Mapping[str, float]) -> dict[str, float]:
        """Return amounts summed over all ranks; a rank that has done nothing knows no names."""
        if self.count == 1:
            return dict(amounts)
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, dict(amounts))
        summed: dict[str, float] = {}
        for one in gathered:
            for name, amount in one.items():
                summed[name] = summed.get(name, 0.0) + amount
        return summed

    def align_buffers(self, model: torch.nn.Module) -> None:
        """Give all ranks the first one's running statistics, which differ; it is the first one's that are saved."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def find_once(self, find: Callable[[], T]) -> T:
        """Return what the first rank finds; it sends it to the others."""
        if self.count == 1:
            return find()
        found: list[Any] = [find() if self.is_first else None]
        dist.broadcast_object_list(found, src=0)
        return cast("T", found[0])

    def is_any(self, own: bool) -> bool:
        """Return whether it is true of one of the ranks: all stop at the same step."""
        if self.count == 1:
            return own
        flag = torch.tensor([float(own)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def wait_for_all(self) -> None:
        """Wait until all ranks are here and the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.count > 1:
            dist.barrier()


def _shard_model(model: torch.nn.Module, parts: tuple[type[torch.nn.Module], ...], precision: str) -> torch.nn.Module:
    """Divide a model over all ranks, part by part; bf16 is what they compute with, what they keep stays fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [p for p in model.modules() if isinstance(p, parts)]:
        fully_shard(part, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


@contextlib.contextmanager
def join_ranks(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Iterator[Ranks]:
    """Join the ranks that a launcher started, by its variables in the environment. Raises ConfigError."""
    rank, local, count = 0, 0, 1
    if is_launched(environ):
        rank, local, count = (int(environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    # A launcher other than torchrun may show each rank one GPU only: its own.
    is_bound = TORCHRUN not in environ and torch.cuda.device_count() == 1
    device = _choose_device(given["device"], 0 if is_bound else local)
    if given["precision"] == "tf32" and device.type == "cpu":
        raise ConfigError("precision is tf32", why="a CPU has no such units", next="give precision=fp32 or bf16")
    ranks = Ranks(rank, local, count, device)
    sharers, is_attached = int(environ.get("LOCAL_WORLD_SIZE", 1)), False
    if count > 1:
        _meet_ranks(ranks, environ)
        if TORCHRUN not in environ:
            sharers, is_attached = _find_neighbours(environ)
    _set_up_torch(given, count_threads(int(given["threads"]), sharers, drop_torchrun_threads(environ)))
    if count == 1:
        yield ranks
        return
    try:
        yield ranks
    finally:
        if is_attached:
            marking.detach_writer()
        gc.collect()  # a model that holds the group when it goes waits, with Python's lock, for threads that want it
        dist.destroy_process_group()


def _meet_ranks(ranks: Ranks, environ: Mapping[str, str]) -> None:
    """Wait for all ranks. Raises ConfigError where not all come."""
    rendezvous = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    if ranks.rank and TORCHRUN not in environ:
        wait_for_host(rendezvous)
    is_cuda = ranks.device.type == "cuda"
    more: dict[str, Any] = {"device_id": ranks.device} if is_cuda else {}
    try:
        with end_at_once():
            dist.init_process_group("nccl" if is_cuda else "gloo", timeout=TIMEOUT, **more)
    except dist.DistError as error:
        why = str(error).partition("\n")[0]
        then = "start all nodes; let rendezvous=HOST:PORT name a host that all reach, and a free port"
        raise ConfigError("the ranks do not meet", where=rendezvous, why=why, next=then) from error


def _find_neighbours(environ: Mapping[str, str]) -> tuple[int, bool]:
    """Return how many ranks share the CPUs of this one, which mpirun or srun started, and whether it was attached.

    Its work is marked in the run that the first rank of its node records, if any; torchrun's ranks find that run in
    their environment.
    """
    node, cpus = (read_boot_id(), os.uname().nodename), os.sched_getaffinity(0)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (node, cpus, environ.get(RUN_VARIABLE), environ.get(HOST_VARIABLE)))
    sharers = count_sharers((node, cpus), [place[:2] for place in gathered])
    run, host = next(((run, host) for other, _, run, host in gathered if other == node and run and host), ("", ""))
    folder = Path(run) / host / "marks"
    if not run or marking.writer() is not None or not folder.is_dir():
        return sharers, False
    marking.attach_writer(folder, read_local_rank(environ))
    return sharers, True


def _choose_device(asked: str, local: int) -> torch.device:
    there = torch.cuda.device_count() if asked != "cpu" else 0
    if asked == "cuda" and not there:
        raise ConfigError(
            "device is cuda", why="torch finds no GPU here", next="give device=cpu, or install its GPU build"
        )
    if not there:
        return torch.device("cpu")
    if local >= there:
        why = f"rank {local} of this node has no GPU, there are {there}"
        raise ConfigError("there are too many ranks", why=why, next="give ranks=0")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _set_up_torch(given: Mapping[str, str], threads: int) -> None:
    """Set seed, threads, precision, and whether algorithms have to be deterministic."""
    torch.manual_seed(int(given["seed"]))
    torch.set_num_threads(threads)
    if given["deterministic"] == "yes":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False
    # cuDNN uses TF32 for convolutions and LSTMs in fp32 unless it is switched off.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = given["precision"] == "tf32"


def describe_precision(asked: str, device: torch.device) -> str:
    """Return the precision that torch computes with, from its own flags: fp32 is fp32 only with TF32 switched off."""
    if asked == "bf16" or device.type != "cuda":
        return asked
    flags = {"products": torch.backends.cuda.matmul.allow_tf32, "convolutions": torch.backends.cudnn.allow_tf32}
    tf32 = [name for name, is_on in flags.items() if is_on]
    return "tf32" if len(tf32) == len(flags) else f"fp32, {tf32[0]} tf32" if tf32 else "fp32"
