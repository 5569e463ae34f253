"""Train, validate, predict and save, each a phase, with the work done in it and the quality reached in the end."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.workloads.training.feed import Feed, to_device
from joulelab.workloads.training.model_figures import META, Counts, count_model
from joulelab.workloads.training.ranks import Ranks, describe_precision, join_ranks
from joulelab.workloads.training.saving import NO, check_file, check_room, load_model, save_model, write_predictions
from joulelab.workloads.training.training_task import Goal, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulelab.workloads.training.training_task import Batch, Task

# Losses at the begin and at the end are means over this share of all steps: single ones jump about.
EDGE = 0.1
GATHERED = 1000


def run_training_loop(
    name: str,
    make: Callable[[Mapping[str, str]], Task],
    given: Mapping[str, str],
    set_up: contextlib.ExitStack | None = None,
) -> None:
    """Do a training from start to end, as one of its ranks; `set_up` is closed when it is ready. Raises ConfigError."""
    for key in ("save", "predictions"):
        check_file(given, key)
    with join_ranks(given) as ranks:
        training = Training(name, make(given), given, ranks)
        if set_up is not None:
            set_up.close()
        training.run()


class Losses:
    """Keep the loss of each step where it was computed, so that no step waits for it, and gather them now and then."""

    def __init__(self) -> None:
        self._pending: list[torch.Tensor] = []
        self._gathered: list[torch.Tensor] = []
        self._taken = 0

    def add(self, loss: torch.Tensor) -> None:
        """Take one more."""
        self._pending.append(loss.detach())
        if len(self._pending) >= GATHERED:
            self._gather()

    def gather_all(self) -> torch.Tensor:
        """Return all so far."""
        self._gather()
        return torch.cat(self._gathered) if self._gathered else torch.zeros(0)

    def take_epoch(self) -> torch.Tensor:
        """Return those since this was asked last."""
        found = self.gather_all()[self._taken :]
        self._taken += len(found)
        return found

    def _gather(self) -> None:
        if self._pending:
            self._gathered.append(torch.stack(self._pending).double().cpu())
            self._pending = []


class Training:
    """Hold a training of one rank."""

    def __init__(self, name: str, task: Task, given: Mapping[str, str], ranks: Ranks) -> None:
        self.task, self.given, self.ranks = task, given, ranks
        self.feed = Feed(task, given, ranks)
        self.counts: Counts = ranks.find_once(lambda: count_model(task.model, task.example, task.loss))
        # Eight ranks that each build a model of 13 B parameters would need 400 GB: they build it without values.
        with META if task.fill is not None else contextlib.nullcontext():
            model = task.model()
        if given.get("load", NO) != NO:
            load_model(model, given["load"])
        model.train()
        self.model = ranks.place_model(model, task, given["precision"])
        steps = task.epochs * len(self.feed.train)
        self.optimizer, self.schedule = task.optimizer(self.model, steps)
        self.losses = Losses()
        self.limits = Limits(int(given["max_steps"]), float(given["max_seconds"]), ranks)
        self.predictions = given.get("predictions", NO) if task.rows is not None and task.predict_times else NO
        if self.predictions != NO:
            samples = len(getattr(task.data, task.predict_on)) * task.predict_times
            most = int(given["max_steps"]) * task.batch or samples
            check_room(self.predictions, min(samples, most) * (1 + len(task.columns)))
        target, patience = float(given.get("target", 0)), int(given.get("patience", 0))
        self.goal = Goal(target, patience, is_lower_better=task.is_lower_better)
        if self.goal.is_set() and task.data.valid is None:
            why = "the data has no part to validate with"
            raise ConfigError("target and patience need validation", why=why, next="leave them out")
        torch.manual_seed(int(given["seed"]) + ranks.rank)  # so that no two ranks change their images alike
        self._report_facts(name)

    def run(self) -> None:
        """Train, validate after each epoch, predict, save; report the quality."""
        with self._mark_phase("warm-up"):
            self._warm_up(int(self.given["warmup_steps"]))
        quality: dict[str, float] = {}
        self.limits.start_clock()
        for epoch in range(1, self.task.epochs + 1):
            with self._mark_phase("epoch", n=epoch):
                self._train_epoch(epoch)
            if self.task.data.valid is not None:
                with self._mark_phase("validation", n=epoch):
                    quality = self._validate("valid")
            self._print_epoch(epoch, quality)
            if self.limits.reached or (quality and self.goal.take_quality(next(iter(quality.values())))):
                break
        stopped_by = self.limits.reached or self.goal.reached or "end"
        if self.task.epochs:
            joulelab.fact(epochs_trained=epoch)
        predicted = quality
        if self.task.predict_times:
            predicted = self._predict()
            if self.task.predict_on != "test" and self.task.data.test is not None:
                with self._mark_phase("test"):
                    predicted = self._validate("test")
        with self._mark_phase("save"):
            save_model(self.model, self.given["save"], self.ranks)
        self._conclude(predicted, stopped_by)

    @contextlib.contextmanager
    def _mark_phase(self, name: str, n: int | None = None) -> Iterator[None]:
        """Mark a phase. The first rank begins it before the others and ends it after them: what they do lies in it."""
        if not self.ranks.is_first:
            self.ranks.wait_for_all()
        with joulelab.phase(name, n):
            if self.ranks.is_first:
                self.ranks.wait_for_all()
            yield
            if self.ranks.is_first:
                self.ranks.wait_for_all()
        if not self.ranks.is_first:
            self.ranks.wait_for_all()

    def _report_facts(self, name: str) -> None:
        """Report model, data and settings as facts."""
        source, counts = self.task.data.source, self.counts
        if not source.real and self.given["data"] == "auto":
            self._print(f"joulelab: {name}: no data was found, so {source.name} data is used")
            self._print(f"-> joulelab workload info {name}")
        own: dict[str, str | float] = {
            "workload": name,
            "data": source.name,
            "data_samples": source.samples,
            "parameters": counts.parameters,
            "parameters_trained": counts.trained,
            "flop_forward": counts.forward,
            "flop_training": counts.training,
            "flop_convention": "FLOP = 2 x MAC for a sample; training is forward and backward",
            "device": str(self.ranks.device.type),
            "ranks": self.ranks.count,
            "precision": describe_precision(self.given["precision"], self.ranks.device),
            "deterministic": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
            "threads": torch.get_num_threads(),
            "workers": int(self.given["workers"]),
            "worker_starts": self.given["worker_starts"],
            "batch": self.task.batch,
            **{
                key: self.given[key]
                for key in ("load", "target", "patience")
                if self.given.get(key, NO) not in (NO, "0")
            },
        }
        joulelab.fact(**{**own, **{name: value for name, value in self.task.facts.items() if name not in own}})

    def _compute_loss(self, batch: Batch) -> torch.Tensor:
        with self._cast():
            return self.task.loss(self.model, batch)

    def _cast(self) -> contextlib.AbstractContextManager[Any]:
        if self.given["precision"] != "bf16" or (self.task.sharded and self.ranks.count > 1):
            return contextlib.nullcontext()  # FSDP casts by itself
        cast: contextlib.AbstractContextManager[Any] = torch.autocast(self.ranks.device.type, dtype=torch.bfloat16)
        return cast

    def _warm_up(self, steps: int) -> None:
        """Let caches, kernels and threads settle: go forward and backward, and forget what came of it."""
        if not steps:
            return
        kept = [buffer.clone() for buffer in self.model.buffers()]
        with torch.random.fork_rng(devices=[self.ranks.device] if self.ranks.device.type == "cuda" else []):
            batch = to_device(self.feed.draw_first(), self.ranks.device)
            for _ in range(steps):
                self._compute_loss(batch).backward()
                self.optimizer.zero_grad(set_to_none=True)
        for buffer, before in zip(self.model.buffers(), kept, strict=True):
            buffer.copy_(before)

    def _train_epoch(self, epoch: int) -> None:
        self.model.train()
        for batch in self.feed.iterate_epoch(epoch):
            loss = self._compute_loss(batch)
            loss.backward()
            if self.task.clip:
                torch.nn.utils.clip_grad_norm_(self._list_trained(), self.task.clip)
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.losses.add(loss)
            if self.task.waits:
                self.ranks.wait_for_all()
            amounts = dict(self.task.amounts(batch))
            joulelab.step(**amounts, FLOP=self.counts.training * amounts["samples"])
            if self.limits.count_step():
                break

    def _list_trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _validate(self, part: str) -> dict[str, float]:
        # Only the number of batches is bounded: the batches of a given time would differ from run to run.
        limits = Limits(int(self.given["max_steps"]), 0.0, self.ranks)
        return self._score(self.feed.iterate_part(part), limits, "validated")

    def _predict(self) -> dict[str, float]:
        """Predict, then write the predictions: the device keeps them until then, as in the HoreKa study."""
        rows: list[torch.Tensor] | None = None if self.predictions == NO else []
        limits = Limits(int(self.given["max_steps"]), float(self.given["max_seconds"]), self.ranks)
        with self._mark_phase("predict"):
            limits.start_clock()
            batches = self.feed.iterate_part(self.task.predict_on, self.task.predict_times)
            scores = self._score(batches, limits, "predicted", rows)
        if rows is not None:
            with self._mark_phase("write"):
                samples = len(getattr(self.task.data, self.task.predict_on))
                write_predictions(rows, self.task.columns, self.predictions, self.ranks, samples)
        joulelab.fact(predict_stopped_by=limits.reached or "end")
        return scores

    def _score(
        self,
        batches: Iterator[tuple[Batch | None, bool]],
        limits: Limits,
        kind: str,
        rows: list[torch.Tensor] | None = None,
    ) -> dict[str, float]:
        """Return the quality over all ranks' batches; a rank that has none left still takes part in what all do.

        Its samples are work of another `kind` than those of the training, whose J/sample they are no part of. To `rows`
        the predictions of each batch are added.
        """
        self.model.eval()
        self.ranks.align_buffers(self.model)
        inner = self.model.module if hasattr(self.model, "module") and self.ranks.count > 1 else self.model
        sums: dict[str, float] = {}
        for batch, counts in batches:
            if batch is not None:
                with torch.no_grad(), self._cast():
                    outputs = self.task.forward(inner, batch)
                    scores = self.task.score(outputs, batch)
            if batch is not None and counts:
                for key, value in scores.items():
                    sums[key] = sums.get(key, 0.0) + value
                if rows is not None and self.task.rows is not None:
                    rows.append(self.task.rows(outputs, batch))
                samples = self.task.amounts(batch)["samples"]
                joulelab.work(**{kind: samples, "FLOP": self.counts.forward * samples})
            if limits.count_step():
                break
        summed = self.ranks.sum_amounts(sums)
        return dict(self.task.quality(summed)) if summed else {}

    def _print_epoch(self, epoch: int, quality: Mapping[str, float]) -> None:
        recent = self._average_losses(self.losses.take_epoch())
        self._print(f"epoch {epoch}: loss {recent:.4g}{format_quality(quality)}", sys.stdout)

    def _conclude(self, quality: Mapping[str, float], stopped_by: str) -> None:
        joulelab.fact(loader_starts=self.feed.starts)
        losses = self.losses.gather_all()
        if not len(losses):
            joulelab.fact(stopped_by=stopped_by, steps=0, quality=", ".join(quality), **quality)
            self._print(f"no steps: only predicted{format_quality(quality)}", sys.stdout)
            return
        edge = max(round(len(losses) * EDGE), 1)
        first, last = self._average_losses(losses[:edge]), self._average_losses(losses[-edge:])
        joulelab.fact(stopped_by=stopped_by, steps=len(losses), loss_first=first, loss_last=last)
        joulelab.fact(quality=", ".join(quality), **quality)
        change = f"loss {first:.4g} to {last:.4g}{format_quality(quality)}"
        self._print(f"steps {len(losses)} (until {stopped_by}), {change}", sys.stdout)

    def _average_losses(self, losses: torch.Tensor) -> float:
        """Return the mean loss over all ranks."""
        return self.ranks.sum_amounts({"loss": losses.mean().item()})["loss"] / self.ranks.count

    def _print(self, text: str, to: Any = None) -> None:
        if self.ranks.is_first:
            print(text, file=to or sys.stderr, flush=True)


def format_quality(quality: Mapping[str, float]) -> str:
    """Return figures as a text that goes on after others."""
    return "".join(f", {name} {value:.4g}" for name, value in quality.items())
