"""Keep what truly happens on a twin: power of every leaf, caps and flaws, in one memory-mapped file."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, overload

import msgspec
import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin import power_curves, profile, truth_file
from joulelab.twin.model import Node
from joulelab.twin.power_curves import NO_LIMITS, LeafCurve, Limits, limit_segments
from joulelab.twin.truth_file import make_segment_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.twin.flaws import Flaws
    from joulelab.twin.power_curves import Curve, Floats, Ints
    from joulelab.twin.profile import Profile

HORIZON_S = 600.0
ROOM = 1 << 16


class Truth:
    """Read and extend a truth file; the source of every true power (W) and energy (J) of a twin.

    Points are the leaves (`gpu:0`, `cpu:0`, `core:0`, `dram:0`, `host`) and points derived from them: `fans`,
    `node.dc`, `node.ac`, `psys`, and for each cord `outlet:1` and `psu:1` (AC) and `psu.dc:1`. Times are
    CLOCK_MONOTONIC in ns. One object may be used by several threads.
    """

    def __init__(self, path: Path) -> None:
        """Open an existing truth file; raise ConfigError if it is none, or of another layout."""
        self.path = path
        self._lock = threading.RLock()
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._fd, 0)
            self._attach_file()
        except (ValueError, msgspec.MsgspecError) as error:
            os.close(self._fd)
            raise ConfigError("not a truth file", where=str(path), why=str(error)) from None
        except ConfigError:
            os.close(self._fd)
            raise

    def _attach_file(self) -> None:
        head = self._view_array(truth_file.HEADER, 0, 1)[0]
        if bytes(head["magic"]) != truth_file.MAGIC.rstrip(b"\0"):
            raise ConfigError("not a truth file", where=str(self.path))
        if head["layout"] != truth_file.LAYOUT:
            raise ConfigError(
                "written by another version of joulelab", where=str(self.path), next="serve the twin again"
            )
        self.start_ns = int(head["start_ns"])
        at, size = int(head["node_at"]), int(head["node_bytes"])
        self.node: Node = msgspec.json.decode(self._map[at : at + size], type=Node)
        self._gpus = self._view_array(truth_file.GPU, int(head["gpus_at"]), int(head["gpus"]))
        self._leaves = self._view_array(truth_file.LEAF, int(head["leaves_at"]), int(head["leaves"]))
        self.leaves = [bytes(name).decode() for name in self._leaves["name"]]
        self._curves = [LeafCurve() for _ in self.leaves]
        self._whole = power_curves.NodeCurves(self.node)
        self._whole_from: int | None = None

    def _view_array(self, dtype: np.dtype[Any], at: int, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=at)

    @classmethod
    def create(
        cls,
        path: Path,
        node: Node | None = None,
        *,
        profiles: Mapping[str, Profile] | None = None,
        start_ns: int | None = None,
        horizon_s: float = HORIZON_S,
        room: int = ROOM,
    ) -> Self:
        """Write a truth file: `horizon_s` (s) of profiles from `start_ns` on, and `room` for more segments per leaf.

        Profiles go by leaf (`gpu:0`) or family (`gpu`); without one, a leaf idles. Raises ConfigError, OSError.
        """
        node = node or Node()
        begin = monotonic_ns() if start_ns is None else start_ns
        truth_file.write_truth_file(
            path, node, profile.compile_segments(node, profiles or {}, begin, 0.0, horizon_s), begin, room
        )
        return cls(path)

    def close(self) -> None:
        """Let go of the file; the object is of no use afterwards."""
        with self._lock:
            if self._fd < 0:
                return
            del self._gpus, self._leaves
            with contextlib.suppress(BufferError):  # a caller still holds a view; the map goes with it
                self._map.close()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading.

    @overload
    def power(self, point: str, t_ns: int) -> float: ...
    @overload
    def power(self, point: str, t_ns: Ints) -> Floats: ...
    def power(self, point: str, t_ns: int | Ints) -> float | Floats:
        """Return the true power at a point in W; raise ConfigError for an unknown point."""
        times = np.atleast_1d(np.asarray(t_ns, dtype=np.int64))
        with self._lock:
            share, whole = power_curves.find_share(self.node, point)
            watts = share * np.sum([curve.watts(times) for curve in self._list_parts(whole)], axis=0)
        return watts if np.ndim(t_ns) else float(watts[0])

    @overload
    def energy(self, point: str, a_ns: int, b_ns: int) -> float: ...
    @overload
    def energy(self, point: str, a_ns: int | Ints, b_ns: Ints) -> Floats: ...
    @overload
    def energy(self, point: str, a_ns: Ints, b_ns: int) -> Floats: ...
    def energy(self, point: str, a_ns: int | Ints, b_ns: int | Ints) -> float | Floats:
        """Return the true energy at a point from a to b in J; raise ConfigError for an unknown point."""
        with self._lock:
            share, whole = power_curves.find_share(self.node, point)
            parts = self._list_parts(whole)
            if isinstance(a_ns, int) and isinstance(b_ns, int):
                return share * sum(curve.joules_at(b_ns) - curve.joules_at(a_ns) for curve in parts)
            begin, end = (np.asarray(t_ns, dtype=np.int64) for t_ns in (a_ns, b_ns))
            joules: Floats = share * np.sum([curve.joules(end) - curve.joules(begin) for curve in parts], axis=0)
            return joules

    @property
    def points(self) -> list[str]:
        """Return all points that have a power."""
        return power_curves.list_points(self.node)

    def curve(self, leaf: str) -> Curve:
        """Return the true, clipped power of a leaf as it is known now; raise ConfigError for an unknown leaf."""
        with self._lock:
            return self._leaf_curve(self._find_leaf(leaf))

    def _list_parts(self, point: str) -> list[Curve]:
        if point in power_curves.NODE_POINTS:
            return [self._whole_curve(point)]
        if point == "psys":
            own = [leaf for leaf in power_curves.list_heating_leaves(self.leaves) if not leaf.startswith("gpu")]
            return [self._whole_curve("fans"), *(self._leaf_curve(self._find_leaf(name)) for name in own)]
        return [self._leaf_curve(self._find_leaf(point))]

    def _find_leaf(self, leaf: str) -> int:
        try:
            return self.leaves.index(leaf)
        except ValueError:
            raise ConfigError(
                f"there is no point {leaf!r}", where="truth", next=suggest_name(leaf, self.points)
            ) from None

    def _leaf_curve(self, index: int) -> Curve:
        cache, leaf = self._curves[index], self._leaves[index]
        count, edits = int(leaf["segments"]), int(self._leaves[self._find_capped(index)]["cap_edits"])
        gpu = self._gpu_of(index)
        state = (count, edits, int(self._gpus[gpu]["flaws"]["generation"]) if gpu is not None else 0)
        if state == cache.state:
            return cache.curve
        rows = self._view_array(truth_file.SEGMENT, int(leaf["segments_at"]), count)
        limits = self._read_limits(index)
        begin = cache.changed_from(rows, limits, count)
        if begin is not None:
            cache.curve.replace_from(limit_segments(rows, limits, self.node.range_w(self.leaves[index])[0], begin))
            self._whole_from = begin if self._whole_from is None else min(self._whole_from, begin)
        cache.state, cache.limits = state, limits
        return cache.curve

    def _whole_curve(self, point: str) -> Curve:
        parts = [self._leaf_curve(self._find_leaf(name)) for name in power_curves.list_heating_leaves(self.leaves)]
        if self._whole_from is not None:
            self._whole.replace_from(parts, self._whole_from)
            self._whole_from = None
        return self._whole.curves[point]

    # Extending.

    @contextlib.contextmanager
    def _lock_file(self) -> Iterator[None]:
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def append(self, leaf: str, t_ns: npt.ArrayLike, start_w: npt.ArrayLike, end_w: npt.ArrayLike) -> None:
        """Add segments (ns, W, W) to a leaf: not before the existing ones, the last one constant; raise ConfigError."""
        rows = make_segment_rows(t_ns, start_w, end_w)
        with self._lock_file():
            record = self._leaves[self._find_leaf(leaf)]
            count, at = int(record["segments"]), int(record["segments_at"])
            if count + len(rows) > record["segment_capacity"]:
                raise ConfigError(
                    f"no room for more segments of {leaf}", where=str(self.path), next="create it with more `room`"
                )
            last = self._view_array(truth_file.SEGMENT, at + (count - 1) * rows.itemsize, 1)[0]
            if rows["t_ns"][0] < last["t_ns"]:
                raise ConfigError(f"{leaf} is already written up to {last['t_ns']} ns", where=str(self.path))
            os.pwrite(self._fd, rows.tobytes(), at + count * rows.itemsize)
            record["segments"] = count + len(rows)

    def read_last(self, leaf: str) -> tuple[int, float]:
        """Return since when (ns) a leaf would draw its last power for ever, and that power (W), not clipped."""
        record = self._leaves[self._find_leaf(leaf)]
        at = int(record["segments_at"]) + (int(record["segments"]) - 1) * truth_file.SEGMENT.itemsize
        row = self._view_array(truth_file.SEGMENT, at, 1)[0]
        return int(row["t_ns"]), float(row["start_w"])

    def get_free_share(self, leaf: str) -> float:
        """Return the share of a leaf's segments that is still free."""
        record = self._leaves[self._find_leaf(leaf)]
        return 1 - float(record["segments"]) / float(record["segment_capacity"])

    def append_profiles(self, profiles: Mapping[str, Profile], at_ns: int, for_s: float) -> None:
        """Append `for_s` (s) of profiles that begin at `at_ns`; afterwards every leaf holds its last power."""
        for leaf, (t_ns, start_w, end_w) in profile.compile_segments(self.node, profiles, at_ns, 0.0, for_s).items():
            self.append(leaf, t_ns, start_w, end_w)

    def set_cap(self, gpu: int, cap_w: float, t_ns: int | None = None) -> None:
        """Set the requested cap of a GPU in W from `t_ns` (now) on; later changes are dropped. Raises ConfigError."""
        lowest, highest = (int(self._get_gpu(gpu)[key]) / 1000 for key in ("min_cap_mw", "max_cap_mw"))
        if not lowest <= cap_w <= highest:
            raise ConfigError(f"cap {cap_w} W is not within {lowest:g} to {highest:g} W", where=f"gpu:{gpu}")
        self._append_limit(int(self._get_gpu(gpu)["leaf"]), t_ns, cap_mw=round(cap_w * 1000))

    def lock_clock(self, gpu: int, mhz: int | None, t_ns: int | None = None) -> None:
        """Lock the SM clock of a GPU to at most `mhz` (None: unlock) from `t_ns` (now) on, as NVML's call does."""
        self._append_limit(int(self._get_gpu(gpu)["leaf"]), t_ns, sm_mhz=mhz or 0)
        with self._edit_gpu(gpu) as state:
            state["sm_lock_max_mhz"] = mhz or 0

    def set_cpu_cap(self, package: int, cap_w: float | None, t_ns: int | None = None) -> None:
        """Set the cap of a CPU package in W (None: no cap) from `t_ns` (now) on. Raises ConfigError."""
        cap_mw = truth_file.NO_CAP_MW if cap_w is None else round(cap_w * 1000)
        self._append_limit(self._find_leaf(f"cpu:{package}"), t_ns, cap_mw=cap_mw)

    def _append_limit(self, index: int, t_ns: int | None, **changes: int) -> None:
        """Add a row to the caps and clocks of a leaf: the last one before `t_ns` with some changes."""
        with self._lock_file():
            record = self._leaves[index]
            at_ns = monotonic_ns() if t_ns is None else t_ns
            history = self._view_array(truth_file.CAP, int(record["caps_at"]), int(record["caps"]))
            count = int(np.searchsorted(history["t_ns"], at_ns, side="right"))
            if count == record["cap_capacity"]:
                raise ConfigError("no room for more caps", where=str(self.path))
            row = history[count - 1 : count].copy()
            truth_file.fill_record(row[0], {"t_ns": at_ns, **changes})
            os.pwrite(self._fd, row.tobytes(), int(record["caps_at"]) + count * row.itemsize)
            record["caps"] = count + 1
            record["cap_edits"] += 1

    def caps(self, gpu: int, t_ns: int) -> tuple[float, float]:
        """Return the requested and the enforced cap of a GPU in W at a time."""
        with self._lock:
            caps = self._build_caps(int(self._get_gpu(gpu)["leaf"]))
            index = caps.find_index(t_ns)
            return float(caps.requested_w[index]), float(caps.enforced_w[index])

    def limit_w(self, gpu: int, t_ns: int) -> float:
        """Return the cap that holds the power of a GPU down (W) at a time, infinite where caps are not enforced."""
        with self._lock:
            limits = self._read_limits(int(self._get_gpu(gpu)["leaf"]))
            return float(limits.enforced_w[limits.find_index(t_ns)])

    def cpu_caps(self, t_ns: int) -> dict[int, float]:
        """Return the caps of the CPU packages that have one (W), at a time."""
        found = {}
        for package in range(self.node.packages):
            rows = self._read_history(self._find_leaf(f"cpu:{package}"))
            cap_mw = int(rows["cap_mw"][max(int(np.searchsorted(rows["t_ns"], t_ns, side="right")) - 1, 0)])
            if cap_mw != truth_file.NO_CAP_MW:
                found[package] = cap_mw / 1000
        return found

    def locked_mhz(self, gpu: int) -> int | None:
        """Return the highest SM clock that a GPU is locked to (MHz) now, None where it is not."""
        return int(self._read_history(int(self._get_gpu(gpu)["leaf"]))["sm_mhz"][-1]) or None

    def _read_history(self, index: int) -> npt.NDArray[Any]:
        leaf = self._leaves[index]
        return self._view_array(truth_file.CAP, int(leaf["caps_at"]), int(leaf["caps"]))

    def _find_capped(self, index: int) -> int:
        """Return the leaf whose caps hold a leaf down: cores go by their package."""
        kind, _, number = self.leaves[index].partition(":")
        return self._find_leaf(f"cpu:{number}") if kind == "core" else index

    def _read_limits(self, index: int) -> Limits:
        """Return the same as `_caps`, with no limit where caps are shown but not enforced."""
        limits, gpu = self._build_caps(index), self._gpu_of(index)
        if gpu is not None and self._gpus[gpu]["flaws"]["unenforced_caps"]:
            return limits._replace(enforced_w=np.full_like(limits.enforced_w, np.inf))
        return limits

    def _build_caps(self, index: int) -> Limits:
        """Return from when on which caps (W) and clocks hold a leaf down."""
        kind, gpu = self.leaves[index].partition(":")[0], self._gpu_of(index)
        if kind not in ("gpu", "cpu", "core"):
            return NO_LIMITS
        history = self._read_history(self._find_capped(index))
        if gpu is None:
            return self._package_caps(history, of_cores=kind == "core")
        flaws = self._gpus[gpu]["flaws"]
        forget_ns, outside_ns = int(flaws["forget_cap_ns"]), int(flaws["outside_cap_ns"])
        events = np.array([t for t in (forget_ns, outside_ns) if t != truth_file.NEVER], dtype=np.int64)
        times = np.unique(np.append(history["t_ns"], events))
        entry = np.maximum(np.searchsorted(history["t_ns"], times, side="right") - 1, 0)
        requested = history["cap_mw"][entry] / 1000
        forgotten = (times >= forget_ns) & (history["t_ns"][entry] < forget_ns)
        requested = np.where(forgotten, int(self._gpus[gpu]["default_cap_mw"]) / 1000, requested)
        limit = np.where(times >= outside_ns, int(flaws["outside_cap_mw"]) / 1000, np.inf)
        one = self.node.gpus[gpu]
        share = np.array([one.clock_share(int(mhz) or None) for mhz in history["sm_mhz"][entry]])
        return Limits(times, requested, np.minimum(requested, limit), share)

    def _package_caps(self, history: npt.NDArray[Any], *, of_cores: bool) -> Limits:
        cpu = self.node.cpu
        asked = [np.inf if mw == truth_file.NO_CAP_MW else float(mw) / 1000 for mw in history["cap_mw"]]
        held = [cpu.core_w(cpu.held_w(cap_w)) if of_cores else cpu.held_w(cap_w) for cap_w in asked]
        return Limits(history["t_ns"].copy(), np.array(asked), np.array(held), np.ones(len(asked)))

    def _get_gpu(self, gpu: int) -> Any:
        if not 0 <= gpu < len(self._gpus):
            raise ConfigError(f"there is no GPU {gpu}", where=str(self.path), why=f"it has {len(self._gpus)}")
        return self._gpus[gpu]

    def _gpu_of(self, index: int) -> int | None:
        return index if index < len(self._gpus) else None

    def read_flaws(self, gpu: int) -> Flaws:
        """Return the flaws of a GPU's meter as they are now."""
        return truth_file.read_flaws(self._get_gpu(gpu)["flaws"], self.start_ns)

    def change_flaws(self, gpu: int, **changes: Any) -> None:
        """Change some flaws of a GPU's meter at once, for every process."""
        with self._lock_file():
            truth_file.fill_record(
                self._get_gpu(gpu)["flaws"],
                truth_file.make_flaws_record(replace(self.read_flaws(gpu), **changes), self.start_ns),
            )
            self._get_gpu(gpu)["flaws"]["generation"] += 1

    def count_seconds(self, t_ns: int | None = None) -> float:
        """Return the time (now) in s since the start, as flaws count it."""
        return ((monotonic_ns() if t_ns is None else t_ns) - self.start_ns) / NS

    def uuid(self, gpu: int) -> str:
        """Return the UUID of a GPU."""
        return bytes(self._get_gpu(gpu)["uuid"]).decode()

    def set_processes(self, gpu: int, processes: Sequence[truth_file.Process]) -> None:
        """Replace the list of processes on a GPU; raise ConfigError if there are too many."""
        if len(processes) > truth_file.PROCESSES:
            raise ConfigError(f"a GPU has room for {truth_file.PROCESSES} processes", where=f"gpu:{gpu}")
        none = 0xFFFFFFFF
        with self._edit_gpu(gpu) as state:
            for number, process in enumerate(processes):
                numbers = (process.gpu_instance, process.compute_instance, process.load)
                values = (process.pid, truth_file.KINDS[process.kind], process.memory_bytes)
                state["process"][number] = (*values, *(none if n is None else n for n in numbers))
            state["processes"] = len(processes)

    def set_instances(self, gpu: int, instances: Sequence[truth_file.Instance], *, mode: bool = True) -> None:
        """Replace the MIG instances of a GPU and switch MIG `mode`; raise ConfigError where MIG is unknown."""
        if not self._get_gpu(gpu)["mig"] or len(instances) > 7:
            raise ConfigError("this GPU has no MIG, or not that many instances", where=f"gpu:{gpu}")
        with self._edit_gpu(gpu) as state:
            for number, one in enumerate(instances):
                uuid = f"MIG-{truth_file.make_uuid(self.node, gpu, 'mig', number)}"
                numbers = (one.gpu_instance, one.compute_instance, one.multiprocessors, one.slices)
                state["instance"][number] = (uuid, one.profile, one.memory_bytes, *numbers)
            state["instances"] = len(instances)
            state["mig_mode"] = mode

    @contextlib.contextmanager
    def _edit_gpu(self, gpu: int) -> Iterator[Any]:
        """Change a GPU's lists while readers wait: an odd sequence number makes them wait."""
        with self._lock_file():
            state = self._get_gpu(gpu)["state"]
            state["sequence"] += 1
            try:
                yield state
            finally:
                state["sequence"] += 1
