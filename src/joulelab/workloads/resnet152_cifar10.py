"""Train ResNet-152 on CIFAR-10: `python -m joulelab.workloads.resnet152_cifar10 batch=512 ranks=8`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.run.workload_registry import read_number, read_whole_number
from joulelab.workloads.training.launch import run_training
from joulelab.workloads.training.training_parameters import (
    COMMON,
    JUDGED,
    YES_NO,
    check_accuracy,
    make_training_command,
    read_choice,
)
from joulelab.workloads.training.training_task import describe_training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.workloads.training.training_task import Task

SUMMARY = "ResNet-152 on CIFAR-10, or on Fashion-MNIST"
STUDY = "BNL 2024"
NAME = "resnet152-cifar10"
PARAMETERS = {
    **COMMON,
    **JUDGED,
    "data": (
        "auto",
        "a folder with CIFAR-10, fashion-mnist, or synthetic-memory; auto: $JOULELAB_DATA, else synthetic-memory",
    ),
    "workers": ("8", "processes of each rank that load data"),
    "worker_starts": ("each-epoch", "each-epoch: each epoch and validation starts its own; once: they stay"),
    "epochs": ("200", "how often the data is seen; 0: only predict, with the model of load="),
    "batch": ("512", "samples in a step, of all ranks together"),
    "test_batch": ("100", "samples of each rank in a step of validation and prediction"),
    "rate": ("0.1", "learning rate at the begin; it falls as a cosine"),
    "momentum": ("0.9", "momentum of SGD"),
    "decay": ("5e-4", "weight decay"),
    "augment": ("cpu", "where images are moved and mirrored: cpu, by the processes that load them; device; or no"),
    "pixels": ("32", "rows and columns to which images are enlarged where they are augmented; 32: as they are"),
    "wait": ("no", "yes: after each step all ranks wait for each other and for their device"),
    "stem": ("cifar", "cifar: 3 x 3, images keep their size; imagenet: 7 x 7 and a pool, 15.8 times less FLOP"),
    "depths": ("3,8,36,3", "blocks of each stage"),
    "width": ("64", "channels of the first stage"),
    "train_samples": ("50000", "images to train on at most, of a stand-in or of fashion-mnist"),
    "test_samples": ("10000", "images to test with at most, of a stand-in or of fashion-mnist"),
}
_SMALL = {
    "depths": "1,1,1,1", "width": "16", "batch": "32", "test_batch": "32", "rate": "0.02", "workers": "0",
    "epochs": "1", "threads": "1", "train_samples": "2048", "test_samples": "256",
}  # fmt: skip
PRESETS = {
    "paper": {},
    "paper-4096": {"batch": "4096"},
    "fashion": {
        **_SMALL, "width": "8", "data": "fashion-mnist", "epochs": "2", "batch": "64", "test_batch": "64",
        "rate": "0.05", "threads": "0", "train_samples": "60000", "test_samples": "10000",
    },
    "smoke": {**_SMALL, "width": "8", "data": "synthetic-memory", "max_steps": "60", "max_seconds": "15"},
}  # fmt: skip
PROGRAM = describe_training(
    "train_samples", test_batch="test_batch", valid=("test_samples", 1.0), predict=("test_samples", 1.0)
)
NOTES = (
    "The paper does not state the stem. Its recipe is the usual one for CIFAR's: 7.444 GFLOP forward for an image.",
    "With ImageNet's stem (stem=imagenet) it is 0.470 GFLOP. Each run records its stem.",
    "The paper's batch is taken as that of all eight GPUs together.",
    "The paper printed 26 h and 123 kWh with batch 512, 5 h and 30 kWh with 4096. Do not expect that on real H100s:",
    "per step that is 4.8 s and 6.9 s (19,600 and 2,600 steps), so a step cost over 4 s whatever its batch.",
    "The paper does not explain that cost and this workload does not have it; only the twin bnl-h100 adds it (step_s).",
    "workers=0 or 1 could explain a part of this: one process moves and mirrors all images of a rank.",
    "So could wait=yes, and fp32 (the default), which is slower than precision=tf32 or bf16.",
    "So could pixels=224 with augment=cpu: loading processes enlarge the images, for 49 times the arithmetic.",
    "It was never measured on H100s which of these, if any, makes a step of over 4 s.",
    "As in the usual recipe, loading processes start again for each epoch and test, and a test has batches of 100:",
    "the paper states neither. Here each rank takes 100 (test_batch); worker_starts=once shows the cost of the starts.",
    "200 epochs are 2.2e17 FLOP: about an hour at a tenth of the fp32 peak of eight H100 (an estimate, never run).",
    "Both batches compute the same FLOP, so their energies should differ far less than by the paper's factor of 4.",
    "PyTorch's default, which the study may have used, computes convolutions in TF32 on GPUs: precision=tf32.",
    "Images are moved by up to four pixels and mirrored, as is usual; the paper does not state it.",
    "The presets fashion and smoke train a small network with the same blocks (1,1,1,1, a quarter of the width).",
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value."""
    return make_training_command("joulelab.workloads.resnet152_cifar10", PARAMETERS, parameters, check=_read)


def _read(parameters: Mapping[str, str]) -> tuple[int, ...]:
    """Check what is not common to all trainings; return the depths. Raises ConfigError."""
    for key, least, most in (
        ("epochs", 0, 10**6),
        ("batch", 1, 10**6),
        ("test_batch", 1, 10**6),
        ("width", 1, 4096),
        ("pixels", 32, 4096),
    ):
        read_whole_number(parameters, key, least=least, most=most)
    for key in ("train_samples", "test_samples"):
        read_whole_number(parameters, key, least=1, most=10**8)
    for key in ("rate", "momentum", "decay"):
        read_number(parameters, key, least=0, most=1000)
    check_accuracy(parameters)
    read_choice(parameters, "stem", ("cifar", "imagenet"))
    read_choice(parameters, "augment", ("cpu", "device", "no"))
    read_choice(parameters, "wait", YES_NO)
    depths = parameters["depths"].split(",")
    return tuple(read_whole_number({"depths": text}, "depths", least=1, most=1000) for text in depths)


def task(given: Mapping[str, str]) -> Task:
    """Describe the training."""
    import torch

    from joulelab.workloads.data.pictures import CLASSES, SIZE, move_pictures, open_pictures, resize_pictures
    from joulelab.workloads.models.resnet import resnet
    from joulelab.workloads.training import model_figures
    from joulelab.workloads.training.training_task import Task

    depths, stem, classes = _read(given), given["stem"], CLASSES
    train, test = int(given["train_samples"]), int(given["test_samples"])
    data = open_pictures(given["data"], train=train, test=test, seed=int(given["seed"]))
    pixels, augment = int(given["pixels"]), given["augment"]
    own = 0 if augment == "device" or pixels == SIZE else pixels  # what the loading processes enlarge to
    data = replace(
        data,
        train=data.train.with_changes(changed=augment == "cpu", size=own),
        valid=data.valid.with_changes(changed=False, size=own),
        test=data.test.with_changes(changed=False, size=own),
    )
    rate = {key: float(given[name]) for key, name in (("lr", "rate"), ("momentum",) * 2, ("weight_decay", "decay"))}

    def optimizer(model: torch.nn.Module, steps: int) -> tuple[torch.optim.Optimizer, object]:
        found = torch.optim.SGD(model.parameters(), **rate)
        return found, torch.optim.lr_scheduler.CosineAnnealingLR(found, T_max=steps)

    def enlarge(images: torch.Tensor) -> torch.Tensor:
        return images if images.shape[-1] == pixels else resize_pictures(images, pixels)

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images = move_pictures(batch[0]) if augment == "device" and not batch[0].is_meta else batch[0]
        return model_figures.compute_class_loss(model, (enlarge(images), batch[1]))

    return Task(
        model=lambda: resnet(classes, stem=stem, depths=depths, width=int(given["width"])),
        data=data,
        loss=loss,
        forward=lambda model, batch: model(enlarge(batch[0])),
        optimizer=optimizer,
        example=model_figures.make_class_example(3, pixels, pixels),
        amounts=model_figures.count_class_samples,
        score=model_figures.score_classes,
        quality=model_figures.compute_accuracy,
        rows=model_figures.list_classes,
        columns=model_figures.COLUMNS,
        waits=given["wait"] == "yes",
        batch=int(given["batch"]),
        test_batch=int(given["test_batch"]),
        epochs=int(given["epochs"]),
        facts={
            **{key: given[key] for key in ("stem", "depths", "augment", "wait")},
            **{key: int(given[key]) for key in ("width", "pixels")},
        },
    )


if __name__ == "__main__":
    sys.exit(run_training(NAME, PARAMETERS, task, PRESETS))
