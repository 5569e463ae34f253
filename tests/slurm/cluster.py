"""Run a real Slurm with its database as plain processes in one folder, on free ports of this machine."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from tests.slurm.daemons import PATH, Daemons, free_ports, program
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROGRAMS = {
    "slurmd": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "sacct": "slurm-wlm",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "munged": "munge",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
CPUS = 4  # as many as are declared, not as there are: jobs of the tests sleep
SCRIPT = "private_sys.sh"


@functools.cache
def missing() -> str:
    """Return what to install for a Slurm to run here, empty where all is there."""
    packages = sorted({package for name, package in PROGRAMS.items() if program(name) is None})
    if packages:
        return f"install {' '.join(packages)}"
    done = subprocess.run([*_unshare(), "true"], capture_output=True, text=True)
    return f"a /sys of one's own needs namespaces: {done.stderr.strip()}" if done.returncode else ""


def _unshare() -> list[str]:
    """Return the words that give a program mounts of its own; an ordinary user needs a user namespace for it."""
    words = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid():
        words += ["-U", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}", "--keep-caps"]
    return words


@dataclass(frozen=True)
class Machine:
    """Describe a node: its energy plugin, what its slurmd has in the environment, its features and a partition.

    All nodes are in the partition `main` as well, which is the default.
    """

    plugin: str = "pm_counters"
    environment: Mapping[str, str] = field(default_factory=dict)
    features: str = ""
    partition: str = ""


class Cluster:
    """Start everything at the beginning of the block, stop it by pid at its end; skip the test where that cannot be.

    `environment` is what client programs need. The folder must be open to all users for `nobody` to use it.
    """

    def __init__(
        self, folder: Path, feed: Path, machines: Mapping[str, Machine], settings: Mapping[str, str] | None = None
    ) -> None:
        if missing():
            pytest.skip(missing())
        for parent in folder.parents:  # munged insists that everybody can reach its socket
            if parent.is_relative_to(tempfile.gettempdir()) and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        self.folder = folder
        self._settings = dict(settings or {})
        self._feed = feed
        self._machines = machines
        self._user = getpass.getuser()
        self._host = socket.gethostname().split(".")[0]
        names = ("database", "dbd", "controller", *machines)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        for name in ("munge", "db", "log", "run", "spool", "state", "etc", "tmp"):
            (folder / name).mkdir(parents=True)
        self._munge = folder / "munge" / "socket"
        self._daemons = Daemons(folder / "log")
        self.conf = folder / "etc" / "slurm.conf"
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.conf), "SLURM_TIME_FORMAT": "standard"}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._daemons.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", f"--user={self._user}", check=False)
        self.run("scancel", "--signal=KILL", f"--user={self._user}", check=False)
        until(lambda: not self.run("squeue", "-h", check=False).strip(), "no job is left")
        self._daemons.stop()

    def run(self, *words: str, check: bool = True, seconds: float = 120.0) -> str:
        """Return what a client program prints."""
        done = subprocess.run(
            words,
            env=self.environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr}{self._daemons.dead()}")
        return done.stdout

    def works(self, *words: str) -> bool:
        """Tell whether a client program succeeds."""
        try:
            self.run(*words, seconds=20)
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch job; return its number."""
        words = ("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", script)
        return self.run(*words).strip().split(";")[0]

    def set(self, **changes: str) -> None:
        """Have all read a configuration that differs from the first one in just these keys."""
        self._write_conf(changes)
        self.run("scontrol", "reconfigure")

    @contextlib.contextmanager
    def paused(self, daemon: str) -> Iterator[None]:
        """Let a daemon answer nothing in this block."""
        pid = self._daemons.pid(daemon)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def without_database(self) -> Iterator[None]:
        """Kill slurmdbd for this block, and start it again."""
        os.kill(self._daemons.pid("slurmdbd"), signal.SIGKILL)
        self._daemons.stop(["slurmdbd"])
        try:
            yield
        finally:
            self._start_dbd()

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        """Stop slurmctld for this block, and start it again: it reads what it has saved."""
        self._daemons.stop(["slurmctld"])
        try:
            yield
        finally:
            self._start_controller()
            until(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld answers")

    def _start_controller(self) -> None:
        self._daemons.start("slurmctld", [str(program("slurmctld")), "-D"], {"SLURM_CONF": str(self.conf)})

    def _start_dbd(self) -> None:
        self._daemons.start("slurmdbd", [str(program("slurmdbd")), "-D"], {"SLURM_CONF": str(self.conf)})
        until(lambda: self.works("sacctmgr", "-n", "list", "cluster"), "slurmdbd answers")

    def _start(self) -> None:
        start = self._daemons.start
        self._start_munge()
        self._start_database()
        self._write_dbd()
        self._write_conf({})
        self._start_dbd()
        self.run("sacctmgr", "-i", "add", "cluster", "test")
        self._start_controller()
        for name, machine in self._machines.items():
            conf = self.folder / "etc" / machine.plugin / "slurm.conf"
            words = [str(program("slurmd")), "-D", "-N", name, "-f", str(conf)]
            start(f"slurmd-{name}", self._private(name, words), {"SLURM_CONF": str(conf), **machine.environment})
        until(self._idle, f"{len(self._machines)} nodes are idle")

    def _start_munge(self) -> None:
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {"socket": self._munge, "key-file": key}
        files |= {f"{kind}-file": self.folder / "munge" / kind for kind in ("log", "pid", "seed")}
        options = [f"--{option}={path}" for option, path in files.items()]
        self._daemons.start("munged", [str(program("munged")), "--foreground", "--num-threads=2", *options])
        until(self._munge.exists, "munged answers", most_s=0.02)

    def _start_database(self) -> None:
        data, door = self.folder / "db", self.folder / "run" / "mysql"
        # A server that starts removes the temporary files of all others that use the same folder.
        own = [f"--datadir={data}", f"--user={self._user}", f"--tmpdir={self.folder / 'tmp'}"]
        make = [str(program("mariadb-install-db")), "--no-defaults", *own]
        make += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        done = subprocess.run(make, capture_output=True, text=True, env=self.environment, timeout=120, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr
        words = [str(program("mariadbd")), "--no-defaults", *own]
        words += [f"--socket={door}", f"--port={self._ports['database']}", "--bind-address=127.0.0.1"]
        words += [f"--pid-file={self.folder}/run/mariadbd.pid", "--innodb-flush-log-at-trx-commit=0"]
        words += ["--innodb-buffer-pool-size=32M", "--innodb-lock-wait-timeout=900", "--skip-name-resolve"]
        self._daemons.start("mariadbd", words)
        client = ["mariadb", "--no-defaults", "-S", str(door), "-u", "root"]
        until(lambda: self.works(*client, "-e", "select 1"), "mariadbd answers")
        grant = "create user 's'@'127.0.0.1' identified by 's'; grant all on acct.* to 's'@'127.0.0.1'"
        self.run(*client, "-e", f"create database acct; {grant}")

    def _write_dbd(self) -> None:
        path = self.folder / "etc" / "slurmdbd.conf"
        path.touch(0o600)
        _write(path, {
            "AuthType": "auth/munge", "AuthInfo": f"socket={self._munge}", "DbdHost": "localhost",
            "DbdPort": self._ports["dbd"], "SlurmUser": self._user, "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1", "StoragePort": self._ports["database"], "StorageUser": "s", "StoragePass": "s",
            "StorageLoc": "acct", "PidFile": self.folder / "run" / "dbd.pid", "LogFile": self.folder / "log" / "dbd",
        })  # fmt: skip

    def _write_conf(self, changes: Mapping[str, str]) -> None:
        """Write one configuration for the controller and its clients, and one for the nodes of each plugin."""
        for plugin in ("", *{machine.plugin for machine in self._machines.values()}):
            keys = self._common() | self._settings | changes
            if plugin:
                keys["AcctGatherEnergyType"] = f"acct_gather_energy/{plugin}"
            path = self.folder / "etc" / plugin / "slurm.conf"
            path.parent.mkdir(exist_ok=True)
            _write(path, keys, self._nodes())
            (path.parent / "cgroup.conf").write_text("CgroupAutomount=no\n")
            (path.parent / "acct_gather.conf").write_text("EnergyIPMIFrequency=1\n" if plugin == "xcc" else "")

    def _nodes(self) -> Sequence[str]:
        usual = f"NodeHostName={self._host} NodeAddr=127.0.0.1 CPUs={CPUS} State=UNKNOWN"
        lines, parts = [], dict[str, list[str]]()
        for name, machine in self._machines.items():
            features = f" Features={machine.features}" if machine.features else ""
            lines.append(f"NodeName={name} Port={self._ports[name]} {usual}{features}")
            if machine.partition:
                parts.setdefault(machine.partition, []).append(name)
        lines += [f"PartitionName={part} Nodes={','.join(nodes)} MaxTime=10 State=UP" for part, nodes in parts.items()]
        return [*lines, "PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP"]

    def _common(self) -> dict[str, object]:
        here = self.folder
        return {
            "ClusterName": "test", "SlurmctldHost": f"{self._host}(127.0.0.1)",
            "SlurmUser": self._user, "SlurmdUser": self._user,
            "AuthType": "auth/munge", "AuthInfo": f"socket={self._munge}",
            "SlurmctldPort": self._ports["controller"],
            "SlurmctldPidFile": here / "run" / "ctld.pid", "SlurmdPidFile": here / "run" / "slurmd-%n.pid",
            "SlurmctldLogFile": here / "log" / "ctld", "SlurmdLogFile": here / "log" / "slurmd-%n",
            "StateSaveLocation": here / "state", "SlurmdSpoolDir": here / "spool" / "%n",
            "SlurmdParameters": "config_overrides", "DebugFlags": "NO_CONF_HASH", "ReturnToService": 2,
            "MpiDefault": "none", "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU",
            "SchedulerParameters": "sched_min_interval=10000,batch_sched_delay=0,defer=0,bf_interval=1",
            "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "localhost",
            "AccountingStoragePort": self._ports["dbd"], "AccountingStoragePass": self._munge,
            "JobAcctGatherType": "jobacct_gather/linux", "JobAcctGatherFrequency": "task=1,energy=1",
            "AcctGatherEnergyType": "acct_gather_energy/pm_counters", "AcctGatherNodeFreq": 1,
            "KillWait": 1, "CompleteWait": 0, "MinJobAge": 300, "InactiveLimit": 0,
        }  # fmt: skip

    def _private(self, name: str, words: Sequence[str]) -> list[str]:
        """Return the words that run others with a /sys of their own."""
        script = self.folder.joinpath("etc", SCRIPT)
        if not script.exists():
            script.write_text(Path(__file__).with_name(SCRIPT).read_text())
        return [*_unshare(), "sh", str(script), str(self._feed), str(self.folder / "run" / f"sys-{name}"), *words]

    def _idle(self) -> bool:
        dead = self._daemons.dead()
        if dead:
            raise AssertionError("; ".join(dead))
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
        return states.count("idle") == len(self._machines)


def _write(path: Path, keys: Mapping[str, object], lines: Sequence[str] = ()) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()) + "".join(f"{line}\n" for line in lines))
