"""Damage run folders at random, and offer the hostile ones of tests/hostile: each is to be noticed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Self

from tests.hostile.folders import COMMANDS, KINDS, Kind, call, make_store, make_whole, tell_expected

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.campaign.campaign_counts import CampaignCounts

CACHES = ("results.json", "head.json", "rows.json")
SLOW = "200,000"  # this kind takes half a minute: `make test-all` has it


def flip_bit(draw: random.Random, data: bytearray) -> None:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def zero_block(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data))
    end = min(at + draw.choice((1, 8, 512, 4096)), len(data))
    data[at:end] = bytes(b ^ 0xFF for b in data[at:end]) if not any(data[at:end]) else bytes(end - at)


def cut_end(draw: random.Random, data: bytearray) -> None:
    del data[draw.randrange(len(data)) :]


def drop_block(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data))
    del data[at : at + draw.randint(1, 64)]


def append_bytes(draw: random.Random, data: bytearray) -> None:
    data += draw.randbytes(draw.randint(1, 64))


WAYS: tuple[Callable[[random.Random, bytearray], None], ...] = (flip_bit, zero_block, cut_end, drop_block, append_bytes)


def damage_run(run: Path, draw: random.Random) -> str:
    """Change one file that is not a cache; return what was done."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name not in CACHES and p.stat().st_size)
    file, way = draw.choice(files), draw.choice(WAYS)
    found, before = file.stat(), file.read_bytes()
    data = bytearray(before)
    while bytes(data) == before:
        way(draw, data)
    file.write_bytes(data)
    if draw.random() < 0.5:  # an enemy sets the time back
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    return f"{file.relative_to(run)}: {way.__name__}"


class FolderTrials:
    """Look at damaged and hostile folders with the commands that read runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __enter__(self) -> Self:
        sealed = ((state, self._folder / f"whole-{state}") for state in (True, False))
        self._whole = {state: make_whole(place, sealed=state) for state, place in sealed}
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Damage a run at random, or make it one of the hostile kinds."""
        self._count += 1
        runs = self._folder / f"store{self._count}"
        try:
            if draw.random() < 0.6:
                self._try_damage(runs, draw, counts)
            else:
                self._try_kind(runs, draw, counts)
        finally:
            shutil.rmtree(runs, ignore_errors=True)

    def _try_damage(self, runs: Path, draw: random.Random, counts: CampaignCounts) -> None:
        done: list[str] = []
        kind = Kind("random damage", lambda run: done.append(damage_run(run, draw)))
        good, bad = make_store(runs, kind, self._whole[True])
        command = draw.choice([name for name in COMMANDS if name != "verify"])
        shown, verified = call(command, runs, good, bad), call("verify", runs, good, bad)
        is_noticed = shown.verdict in ("damaged", "refused") and verified.verdict == "damaged"
        self._count_noticed(counts, is_noticed, f"{done[0]}: {command} {shown}, verify {verified}", shown.verdict)

    def _try_kind(self, runs: Path, draw: random.Random, counts: CampaignCounts) -> None:
        kinds = [kind for kind in KINDS.values() if SLOW not in kind.name and not kind.reader]
        kind, command = draw.choice(kinds), draw.choice(COMMANDS)
        good, bad = make_store(runs, kind, self._whole[kind.sealed])
        found, wanted = call(command, runs, good, bad), tell_expected(kind, command)
        is_right = not wanted or found.verdict == wanted
        self._count_noticed(counts, is_right, f"{kind.name}: {command} {found}, expected {wanted}", found.verdict)

    def _count_noticed(self, counts: CampaignCounts, is_noticed: bool, what: str, verdict: str) -> None:
        counts.damaged += 1
        counts.noticed += is_noticed
        counts.crashes += verdict == "crash"
        if not is_noticed:
            counts.problems.append(what)
