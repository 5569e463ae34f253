"""Ranks and nodes are found from the variables of srun and mpirun, and so is the address where all meet."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.workloads.training import launch
from joulelab.workloads.training.launch import LaunchPlace, become_ranks, find_launch, find_rendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping

# As Slurm 22.05 sets them for the last of two tasks on each of two nodes, and as Open MPI 4.1 does for the second node.
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {
    **JOB,
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_orte_hnp_uri": "708771840.0;tcp://127.0.0.1,10.1.1.1:44509;tcp6://[fd00::2]:35893",
}
GIVEN = {"device": "cpu", "ranks": "0", "nodes": "0", "rendezvous": "", "threads": "1"}


@every_row(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("gpu[03-05,9],login1", "gpu03"),
        ("login1,gpu[03-05]", "login1"),
        ("rack[1-2]node[007-009,12]-ib,x", "rack1node007-ib"),
        ("a.b-c[1,5]", "a.b-c1"),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert launch.find_first_host(hosts) == first


@every_row(
    ("environ", "place"),
    [
        ({}, None),
        (JOB, None),  # a job's script
        ({**STEP, "SLURM_STEP_ID": "4294967291"}, None),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, None),
        (STEP, LaunchPlace(3, 4, 1, 2, by_slurm=True)),
        (MPI, LaunchPlace(1, 2, 0, 1)),
        (JOB | MPI, LaunchPlace(1, 2, 0, 1)),
        (
            {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
            LaunchPlace(5, 8, 1, 4),
        ),
    ],
)
def test_the_place_of_a_process(environ: Mapping[str, str], place: LaunchPlace | None) -> None:
    assert find_launch(environ) == place
    if place is not None:
        assert place.nodes == 2


@every_row(
    ("given", "environ", "found"),
    [
        ("there:1", STEP, "there:1"),
        ("", STEP, f"n1:{10_000 + (4711 * 16 + 2) % 20_000}"),
        ("", {**STEP, "SLURM_STEP_NODELIST": "n[2,5]"}, f"n2:{10_000 + (4711 * 16 + 2) % 20_000}"),
        ("", JOB, f"n1:{10_000 + 4711 * 16 % 20_000}"),  # ranks that are started by other means in a job
        ("", JOB | MPI, f"n1:{10_000 + 4711 * 16 % 20_000}"),
        ("", MPI, f"127.0.0.1:{10_000 + 708771840 % 20_000}"),
    ],
)
def test_the_rendezvous(given: str, environ: Mapping[str, str], found: str) -> None:
    assert find_rendezvous(given, find_launch(environ), environ) == found


def refuse_bind(_self: object, _address: object) -> None:
    raise OSError(99, "Cannot assign requested address")


def test_without_an_address_the_advice_names_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="rendezvous=HOST:PORT"):
        find_rendezvous("", None, {})
    monkeypatch.setattr(socket.socket, "bind", refuse_bind)  # mpirun runs on another node than rank 0
    first = MPI | {"OMPI_COMM_WORLD_RANK": "0"}
    with pytest.raises(ConfigError, match=r"rank 0 does not run on the node of mpirun, 127\.0\.0\.1"):
        find_rendezvous("", find_launch(first), first)


@pytest.mark.system
def test_a_node_is_reached_by_the_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.find_own_address("127.0.0.1:12345") == "127.0.0.1"
    monkeypatch.setattr(socket.socket, "bind", refuse_bind)
    assert launch.find_own_address("127.0.0.9:12345") == "127.0.0.1"  # as packets to that host are sent


class Torchrun:
    """Take the words that torchrun would get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[Any] = []
        monkeypatch.setattr(launch, "_run_torchrun", lambda *given: self.given.extend(given))


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Torchrun:
    for name in (*launch.LAUNCHED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", *STEP, *MPI):
        monkeypatch.setenv(name, "")  # so that what is set here does not stay
        monkeypatch.delenv(name)
    return Torchrun(monkeypatch)


def start(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], **given: str) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    become_ranks(GIVEN | given, ["epochs=1"])


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [(STEP, ("3", "4", "1", "2", "n1")), (MPI, ("1", "2", "0", "1", "127.0.0.1"))],
)
def test_processes_of_srun_and_mpirun_are_the_ranks(
    torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], ranks: tuple[str, ...]
) -> None:
    start(monkeypatch, environ)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert tuple(os.environ[name] for name in names) == ranks
    assert launch.is_launched(os.environ)
    assert not torchrun.given


def test_one_process_on_each_node_starts_the_ranks_of_its_node(
    torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(monkeypatch, {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, ranks="4")
    ranks, nodes, rendezvous, place, words = torchrun.given
    assert (ranks, nodes, rendezvous.partition(":")[0], words) == (4, 2, "n1", ["epochs=1"])
    assert place == LaunchPlace(1, 2, 0, 1, by_slurm=True)


def test_nodes_that_are_started_by_hand_need_a_rendezvous(torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no rendezvous"):
        start(monkeypatch, {}, nodes="2")
    start(monkeypatch, {}, nodes="2", rendezvous="n1:5")
    assert torchrun.given[:4] == [1, 2, "n1:5", None]


def test_nodes_may_train_each_by_itself(torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, MPI, nodes="1")
    assert "RANK" not in os.environ
    assert not torchrun.given


@pytest.mark.parametrize(("key", "value", "why"), [("nodes", "3", "2 are started"), ("ranks", "4", "2 are started on")])
def test_other_numbers_than_are_started_are_refused(
    torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch, key: str, value: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        start(monkeypatch, STEP, **{key: value})
    assert not torchrun.given


class Clock:
    """Be the time: it goes on while one sleeps."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


def test_a_rank_waits_for_the_first_node_and_then_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(launch, "time", clock)

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        assert (address, timeout) == (("n01", 11232), 10)
        if clock.at_s < 30:
            raise socket.gaierror(-2, "Name or service not known")
        return socket.socket()

    monkeypatch.setattr(launch.socket, "create_connection", connect)
    launch.wait_for_host("n01:11232")
    assert clock.at_s == 30
    told = capsys.readouterr().err
    assert told == "joulelab: waiting for the first node, n01:11232 (Name or service not known)\n"
    clock.at_s = 0
    with pytest.raises(
        ConfigError, match=r"the first node, n01, cannot be reached \(Name or service not known, for 20 s"
    ):
        launch.wait_for_host("n01:11232", wait_s=20)
    assert clock.at_s == 20


def test_a_signal_ends_a_rank_that_waits_in_torch() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handler) for number, handler in zip(numbers, (print, signal.SIG_IGN), strict=True)]
    try:
        with launch.end_at_once():
            assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL, signal.SIG_IGN]
        assert [signal.getsignal(number) for number in numbers] == [print, signal.SIG_IGN]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("affinities", "sharers"),
    [
        ([range(19), range(19, 38), range(38, 57), range(57, 76)], 1),  # bound: each has its share already
        ([range(76)] * 4, 4),
        ([range(38), range(38), range(38, 76), range(38, 76)], 2),
    ],
)
def test_cpus_are_divided_by_the_ranks_that_share_them(affinities: list[range], sharers: int) -> None:
    places = [(node, cpus) for node in ("n1", "n2") for cpus in affinities]
    assert launch.count_sharers(places[0], places) == sharers
