"""Build Xception as Keras has it, parameter for parameter, and read pretrained weights from a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from joulelab.core.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FEATURES = 2048
MIDDLE = 8
KERAS_ENDINGS = (".h5", ".keras")


class Xception(nn.Module):
    """Classify images whose colours lie between -1 and 1: a base of separable convolutions, then one or two layers.

    A frozen base learns nothing, its batch norms included, whatever mode the model is put into.
    """

    def __init__(self, classes: int, *, middle: int = MIDDLE, top: str = "one", frozen: bool = False) -> None:
        super().__init__()
        self.frozen = frozen
        self.base = _base(middle)
        if top == "one":
            self.top = nn.Sequential(nn.Linear(FEATURES, classes))
        else:
            hidden = int(top)
            self.top = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        _start_as_keras(self)
        self.base.requires_grad_(not frozen)

    def forward(self, pixels: Any) -> Any:
        """Return a figure for each class."""
        return self.top(self.base(pixels).mean((2, 3)))

    def train(self, mode: bool = True) -> Xception:
        """Set the mode; a frozen base stays as it is in prediction."""
        super().train(mode)
        if self.frozen:
            self.base.eval()
        return self


class _Separable(nn.Module):
    """Filter each channel by itself, then mix channels."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inside, inside, 3, padding=1, groups=inside, bias=False)
        self.pointwise = nn.Conv2d(inside, outside, 1, bias=False)
        self.norm = _norm(outside)

    def forward(self, x: Any) -> Any:
        return self.norm(self.pointwise(self.depthwise(x)))


class _Halving(nn.Module):
    """Run two separable convolutions and halve the picture, beside a shortcut that does so too."""

    def __init__(self, inside: int, between: int, outside: int, *, relu_first: bool = True) -> None:
        super().__init__()
        # Not in place: the shortcut reads the same tensor.
        first = [nn.ReLU()] if relu_first else []
        layers = [*first, _Separable(inside, between), nn.ReLU(inplace=True), _Separable(between, outside)]
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride=2, bias=False), _norm(outside))

    def forward(self, x: Any) -> Any:
        # Keras pads "same": on both sides of an odd length, only at the end of an even one.
        odd = (x.shape[2] % 2, x.shape[3] % 2)
        halved = functional.max_pool2d(self.body(x), 3, 2, padding=odd, ceil_mode=True)
        return halved + self.shortcut(x)


class _Middle(nn.Module):
    """Run three separable convolutions beside a shortcut that changes nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[Any] = []
        for k in range(3):
            layers += [nn.ReLU(inplace=k > 0), _Separable(channels, channels)]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def load_weights(model: Xception, file: Path) -> None:
    """Put pretrained weights into the base: a torch state_dict of this model, or a file of Keras's Xception.

    Weights of the top are left out: it is made for other classes. Raises ConfigError, MissingDependency.
    """
    if not file.is_file():
        raise ConfigError("there is no such file of weights", where=str(file), next="name one, or use weights=random")
    found = _read_keras(file) if file.suffix in KERAS_ENDINGS else _read_torch(file)
    wanted = model.base.state_dict()
    wrong = sorted(set(wanted) ^ set(found)) or [k for k in wanted if wanted[k].shape != found[k].shape]
    if wrong:
        why = f"they do not fit at {wrong[0]}, and {len(wrong) - 1} others"
        advice = "the state_dict of an Xception of the same number of middle blocks is needed"
        raise ConfigError("these are not its weights", where=str(file), why=why, next=advice)
    model.base.load_state_dict(found)


def from_keras(keras_model: Any) -> dict[str, Any]:
    """Return the base's state_dict from a model of `keras.applications.Xception`, with or without its top."""
    layers = {layer.name: [torch.as_tensor(w) for w in layer.get_weights()] for layer in keras_model.layers}
    # Keras numbers layers without a name of their own through the whole session; their order is that of the blocks.
    convolutions = [name for name in layers if name.startswith("conv2d")]
    norms = [name for name in layers if name.startswith("batch_normalization")]
    state: dict[str, Any] = {}
    _put_conv(state, "0", layers["block1_conv1"], layers["block1_conv1_bn"])
    _put_conv(state, "3", layers["block1_conv2"], layers["block1_conv2_bn"])
    middle = sum(name.endswith("sepconv3") for name in layers)
    for block in range(2, middle + 6):
        place = str(block + 4)  # six layers come before the blocks
        halving = block in (2, 3, 4, middle + 5)
        for k in range(2 if halving else 3):
            name, at = f"block{block}_sepconv{k + 1}", 2 * k + (block > 2)
            _put_separable(state, f"{place}.body.{at}", layers[name], layers[f"{name}_bn"])
        if halving:
            conv, norm = convolutions.pop(0), norms.pop(0)
            _put_conv(state, f"{place}.shortcut.0", layers[conv], layers[norm], norm=f"{place}.shortcut.1")
    last = middle + 6
    for k, at in ((1, last + 4), (2, last + 6)):
        _put_separable(state, str(at), layers[f"block{last}_sepconv{k}"], layers[f"block{last}_sepconv{k}_bn"])
    return state


def _base(middle: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, bias=False),
        _norm(32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, bias=False),
        _norm(64),
        nn.ReLU(inplace=True),
        _Halving(64, 128, 128, relu_first=False),
        _Halving(128, 256, 256),
        _Halving(256, 728, 728),
        *(_Middle(728) for _ in range(middle)),
        _Halving(728, 728, 1024),
        _Separable(1024, 1536),
        nn.ReLU(inplace=True),
        _Separable(1536, FEATURES),
        nn.ReLU(inplace=True),
    )


def _norm(channels: int) -> Any:
    """Return a batch norm with Keras's constants, whose momentum is the other share."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _start_as_keras(model: nn.Module) -> None:
    """Draw the first weights as Keras does: uniform after Glorot, biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _read_torch(file: Path) -> dict[str, Any]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its readers do
        advice = "save them with torch.save(model.state_dict(), FILE)"
        raise ConfigError("cannot read the weights", where=str(file), why=str(error), next=advice) from error
    return base_of(found) if isinstance(found, dict) else {}


def base_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a base's part of the state_dict of a whole model, or the state_dict of a base as it is."""
    inside = {k.removeprefix("module."): v for k, v in state.items()}
    return {k.removeprefix("base."): v for k, v in inside.items() if not k.startswith("top.")}


def _read_keras(file: Path) -> dict[str, Any]:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # else it looks for tensorflow
    try:
        import keras
    except ImportError as error:
        why, advice = (
            "keras is not installed",
            "pip install 'joulelab[keras]', or convert them to a torch file elsewhere",
        )
        raise MissingDependency("Keras's weights cannot be read", where=str(file), why=why, next=advice) from error
    last: Exception | None = None
    for with_top in (False, True):
        try:
            if file.suffix == ".keras":
                return from_keras(keras.models.load_model(file, compile=False))
            return from_keras(keras.applications.Xception(weights=str(file), include_top=with_top))
        except Exception as error:  # noqa: BLE001 - Keras raises whatever its readers do; told below
            last = error
    raise ConfigError("cannot read the weights", where=str(file), why=str(last), next="name a file of Keras's Xception")


def _put_conv(state: dict[str, Any], name: str, conv: list[Any], norm_values: list[Any], *, norm: str = "") -> None:
    state[f"{name}.weight"] = conv[0].permute(3, 2, 0, 1)
    _put_norm(state, norm or str(int(name) + 1), norm_values)


def _put_separable(state: dict[str, Any], name: str, kernels: list[Any], norm_values: list[Any]) -> None:
    state[f"{name}.depthwise.weight"] = kernels[0].permute(2, 3, 0, 1)
    state[f"{name}.pointwise.weight"] = kernels[1].permute(3, 2, 0, 1)
    _put_norm(state, f"{name}.norm", norm_values)


def _put_norm(state: dict[str, Any], name: str, values: list[Any]) -> None:
    for key, value in zip(("weight", "bias", "running_mean", "running_var"), values, strict=True):
        state[f"{name}.{key}"] = value
    state[f"{name}.num_batches_tracked"] = torch.tensor(0)
