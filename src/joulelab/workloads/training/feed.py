"""Feed batches to a rank: its share of each epoch, shuffled; its share of validation and prediction data, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from joulelab.workloads.training.ranks import Ranks
    from joulelab.workloads.training.training_task import Batch, Task


class Feed:
    """Hold the loaders of one rank; `starts` counts how often their processes were started.

    With `worker_starts` = once they stay until the end, else each epoch, validation and prediction starts its own.
    """

    def __init__(self, task: Task, given: Mapping[str, str], ranks: Ranks) -> None:
        self._task, self._ranks, self._seed = task, ranks, int(given["seed"])
        self._batch, self._workers = ranks.share_batch(task.batch), int(given["workers"])
        self._test_batch = task.test_batch or self._batch
        self._keeps_workers = given["worker_starts"] == "once"
        self._kept: dict[str, DataLoader[Any]] = {}
        self.starts = 0
        self._sampler = DistributedSampler(
            task.data.train, ranks.count, ranks.rank, shuffle=True, seed=self._seed, drop_last=task.drop_last
        )
        # A last batch of one sample has no statistics to normalise by.
        alone = self._batch > 1 and len(self._sampler) % self._batch == 1
        self.train = self._make_loader(
            task.data.train, self._workers, sampler=self._sampler, drop_last=task.drop_last or alone
        )
        if task.predict_times and getattr(task.data, task.predict_on) is None:
            raise ConfigError("there is nothing to predict on", why=f"the data has no part {task.predict_on!r}")
        if not len(self.train):
            why = f"there are {len(task.data.train)} samples, a batch has {task.batch}"
            raise ConfigError("there is nothing to train on", why=why, next="choose a smaller batch, or more data")

    def draw_first(self) -> Batch:
        """Return a batch to warm up with; the order of the training data does not depend on it."""
        return next(iter(self._make_loader(self._task.data.train, 0, sampler=self._sampler)))

    def iterate_epoch(self, epoch: int) -> Iterator[Batch]:
        """Return the batches of an epoch, on the device."""
        self._sampler.set_epoch(epoch - 1)
        self._count_start("epochs", self.train)
        return (to_device(batch, self._ranks.device) for batch in self.train)

    def iterate_part(self, part: str, times: int = 1) -> Iterator[tuple[Batch | None, bool]]:
        """Return this rank's batches of a part, on the device, and whether each counts, as many on each rank.

        Where it has no more there is None. A model that is divided over ranks works only where all have a batch: there
        an earlier one comes again, and does not count.
        """
        whole = getattr(self._task.data, part)
        if whole is None:
            return
        count, rank = self._ranks.count, self._ranks.rank
        most = -(-len(whole) // count)
        mine = list(range(rank, len(whole), count))
        again = None
        if self._task.sharded and not mine:
            again = to_device(self.draw_first(), self._ranks.device)
        share = Subset(whole, mine) if count > 1 else whole
        loader = self._kept.get(part) or self._make_loader(share, self._workers, batch_size=self._test_batch)
        for _ in range(times):
            given = 0
            self._count_start(part, loader)
            for batch in loader:
                given += 1
                here = to_device(batch, self._ranks.device)
                again = here if self._task.sharded else None
                yield here, True
            for _ in range(given, -(-most // self._test_batch)):
                yield again, False

    def _count_start(self, name: str, loader: DataLoader[Any]) -> None:
        """Count the start of a loader's processes, unless they are there already."""
        if self._workers and self._kept.get(name) is not loader:
            self.starts += 1
        if self._keeps_workers:
            self._kept[name] = loader

    def _make_loader(self, data: Any, workers: int, **more: Any) -> DataLoader[Any]:
        """Return a loader that reads ahead in processes of its own, if there are any."""
        if workers:
            more |= {"persistent_workers": self._keeps_workers, "prefetch_factor": self._task.prefetch or 2}
        more.setdefault("batch_size", self._batch)
        return DataLoader(
            data,
            num_workers=workers,
            collate_fn=self._task.collate,
            pin_memory=self._ranks.device.type == "cuda",
            generator=torch.Generator().manual_seed(self._seed + self._ranks.rank),
            **more,
        )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with every tensor in it on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return cast("Any", type(batch))(to_device(value, device) for value in batch)
    return batch
