"""Measure a training with Hugging Face's Trainer: `Trainer(..., callbacks=[JoulelabCallback()])`.

Energy joins the rows that the Trainer logs, so that every tracker of `report_to` gets it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import MissingDependency
from joulelab.integrations.batch_sizes import BatchCounter
from joulelab.integrations.training import TrainingCallback, TrainingMeasurement, guard_hook
from joulelab.run import marking

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependency(
        "this callback needs transformers, which cannot be imported",
        why=str(error),
        next='pip install "joulelab[huggingface]"',
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from transformers import TrainerControl, TrainerState, TrainingArguments

LAST_ROW = {"train_runtime", "train_loss", "total_flos"}  # names in the last row that a Trainer logs


class ForwardBatches:
    """Count the batches that go into a model: the Trainer reports neither their sizes nor when one begins.

    Only the first pass of each batch counts: a loss may call the model more than once, and generation does.
    """

    def __init__(self) -> None:
        self.trained: dict[str, float] | None = None
        self.scored: dict[str, float] | None = None
        self._count_work = BatchCounter()
        self.since_ns = 0  # when the first batch of an evaluation came

    def __call__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a batch before the model gets it."""
        if model.training:
            if self.trained is None:
                self.trained = self._count_work(kwargs or args)
        elif self.scored is None:
            self.since_ns = self.since_ns or monotonic_ns()
            self.scored = self._count_work(kwargs or args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a copy of the model a counter of its own."""
        return ForwardBatches, ()


class JoulelabCallback(TrainingCallback, TrainerCallback):
    """Measure a training: phases `train`, `epoch n`, steps, validation, predict, save; samples and tokens.

    Energy, power, cost and CO2e are in the rows that the Trainer logs, and beside `train_runtime` in its metrics.
    Options are those of `joulelab.measure()`, `log` (auto, wandb, mlflow, none) and `summary` (a line at the end).
    """

    def __init__(self, name: str | None = None, **options: Any) -> None:
        self.training = TrainingMeasurement(name, **options)
        self._batches = ForwardBatches()
        self._hook: Any = None
        self._reset()

    def _reset(self) -> None:
        self._epoch = self._batch = self._tokens_seen = 0
        self._world, self._counts_tokens = 1, False
        self._since_ns = monotonic_ns()
        self._done: dict[str, float] = {}
        self._scored: dict[str, float] = {}

    @guard_hook
    def on_init_end(self, args: TrainingArguments, *_: Any, model: Any = None, **__: Any) -> None:
        """Count the batches of evaluations before any training."""
        self._add_hook(model, args)

    @guard_hook
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, model: Any = None, **__: Any
    ) -> None:
        """Begin to measure."""
        self._reset()
        self._tokens_seen = state.num_input_tokens_seen
        # The arguments compute these each time.
        self._world = max(args.world_size, 1)
        self._counts_tokens = args.include_num_input_tokens_seen not in ("no", False)
        self.training.begin_training("train", local_rank=args.local_process_index, global_rank=args.process_index)
        self._move_to_front()
        self._add_hook(model, args)
        self._since_ns = monotonic_ns()

    @guard_hook
    def on_log(self, _args: Any, state: TrainerState, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        """Add energy to a row of the training; the last row ends the measurement."""
        is_last = logs is not None and logs.keys() >= LAST_ROW
        if logs is None or not (is_last or "loss" in logs):
            return
        found = self.training.end_training() if is_last else self.training.read_row()
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)

    @guard_hook
    def on_train_end(self, args: TrainingArguments, *_: Any, model: Any = None, **__: Any) -> None:
        """End the measurement; later predictions are counted if they are part of a run."""
        self.training.end_training()
        self._add_hook(model, args)

    @guard_hook
    def on_epoch_begin(self, _args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        """Begin an epoch; a resumed training continues the numbers."""
        self._epoch = max(self._epoch, int((state.epoch or 0) + 1e-6)) + 1
        self._batch = 0
        self.training.enter_phase("epoch", self._epoch)

    @guard_hook
    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """End an epoch."""
        self.training.leave_phase("epoch")
        self._since_ns = monotonic_ns()

    @guard_hook
    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, *_: Any, train_dataloader: Any = None, **__: Any
    ) -> None:
        """Count a batch whose gradients are accumulated."""
        if self.training.is_begun:
            self._count_batch(args, state, train_dataloader)

    @guard_hook
    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *_: Any,
        train_dataloader: Any = None,
        **__: Any,
    ) -> None:
        """Report a step of the optimizer, with all batches since the last one; at the limit of the run, stop."""
        if not self.training.is_begun:
            return
        self._count_batch(args, state, train_dataloader)
        if self._counts_tokens:
            # The Trainer's number is the sum of all ranks: each reports its share.
            seen, self._tokens_seen = self._tokens_seen, state.num_input_tokens_seen
            self._done["tokens"] = (state.num_input_tokens_seen - seen) / self._world
        done, self._done = self._done, {}
        self.training.report_step(done)
        self._since_ns = monotonic_ns()
        if self.training.has_reached_limit():
            control.should_save = control.should_training_stop = True

    def _count_batch(self, args: TrainingArguments, state: TrainerState, loader: Any) -> None:
        self._batch += 1
        seen, self._batches.trained = self._batches.trained or {}, None
        if seen.get("samples", 1) == 1:
            # No batch was seen, or a single row: a packed batch holds its samples end to end.
            seen = seen | {"samples": _find_planned_size(args, state, loader, self._batch, self._world)}
        _add_amounts(self._done, seen)

    @guard_hook
    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Count a batch of an evaluation or a prediction."""
        self._batches.since_ns = self._batches.since_ns or monotonic_ns()
        _add_amounts(self._scored, self._batches.scored or {})
        self._batches.scored = None

    @guard_hook
    def on_evaluate(self, args: TrainingArguments, *_: Any, eval_dataloader: Any = None, **__: Any) -> None:
        """Mark an evaluation that has ended."""
        self._mark_evaluation("validation", args, eval_dataloader)

    @guard_hook
    def on_predict(self, args: TrainingArguments, *_: Any, eval_dataloader: Any = None, **__: Any) -> None:
        """Mark a prediction that has ended."""
        self._mark_evaluation("predict", args, eval_dataloader)

    @guard_hook
    def on_save(self, *_: Any, **__: Any) -> None:
        """Mark a saved checkpoint as a phase since the last event."""
        if self.training.is_begun:
            self.training.mark_past_phase("save", self._since_ns, {}, self._epoch or None)
            self._since_ns = monotonic_ns()

    def close(self, error: BaseException | None = None) -> None:
        """End the measurement if the Trainer did not, as after a failed training."""
        super().close(error)
        with contextlib.suppress(Exception):
            self._remove_hook()

    def _move_to_front(self) -> None:
        """Come before the callbacks of trackers, which would not see what a later callback adds to a row.

        The Trainer does not give its list of callbacks to them: it is found in the frame that calls this hook.
        """
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            listed = getattr(frame.f_locals.get("self"), "callbacks", None)
            if isinstance(listed, list) and any(one is self for one in listed):
                listed.sort(key=lambda one: one is not self)
                return
            frame = frame.f_back

    def _mark_evaluation(self, name: str, args: TrainingArguments, loader: Any) -> None:
        """Mark an evaluation that has ended: in a training since the last event, else since its first batch."""
        inside = self.training.is_begun
        since = self._since_ns if inside else self._batches.since_ns
        scored, self._scored, self._batches.since_ns = self._scored, {}, 0
        if self._hook is None:
            with contextlib.suppress(TypeError, AttributeError):  # a stream has no length
                scored = {"samples": len(loader.dataset) / max(args.world_size, 1)}
        if since:
            # Samples of a validation are not those of the training, so they have another name.
            done = {"validated": scored.get("samples", 0.0)} if inside else scored
            self.training.mark_past_phase(name, since, done, (self._epoch or None) if inside else None)
        self._since_ns = monotonic_ns()

    def _add_hook(self, model: Any, args: TrainingArguments) -> None:
        """Count batches by a hook of the model, if a run is recorded and the model gets whole batches, uncompiled."""
        self._remove_hook()
        compiled = args.torch_compile or hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
        if marking.writer() is not None and not compiled and args.n_gpu <= 1 and model is not None:
            self._hook = model.register_forward_pre_hook(self._batches, with_kwargs=True)

    def _remove_hook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()


def _find_planned_size(args: TrainingArguments, state: TrainerState, loader: Any, batch: int, world: int) -> int:
    """Return the size of a batch (by its number in the epoch) on this rank, from the Trainer's arguments."""
    size = int(state.train_batch_size or args.train_batch_size)
    if world > 1:
        return size  # batches of ranks are filled up
    try:
        rest = len(loader.dataset) - (len(loader) - 1) * size if batch == len(loader) else size
    except TypeError:
        return size  # a stream has no length
    return rest if 0 < rest < size else size


def _add_amounts(sums: dict[str, float], amounts: Mapping[str, float]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount
