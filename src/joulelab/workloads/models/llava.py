"""Answer questions on images: LLaVA-1.5, CLIP-L/14 and a projector that stay as they are, a Llama 2 that is trained.

The model is transformers' own, with its names of weights; only the way through it is ours: it waits for nothing on the
device, takes texts without an image beside those with one, and can be counted where nothing is computed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from joulelab.workloads.models.llama import DECODERS, Decoder, config, no_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

# Tokens beside Llama's: an image, padding, and some to make a round number.
EXTRA_TOKENS = 64
IGNORED = -100
SPREAD = 0.02  # standard deviation of random weights
# How CLIP's images were scaled: mean and deviation of red, green and blue.
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# What is divided over the ranks each by itself.
PARTS = (LlamaDecoderLayer, CLIPEncoderLayer)


@dataclass(frozen=True, slots=True)
class Size:
    """Hold the size of a model: its decoder; the widths, layers and heads of its tower; the pixels of its images."""

    decoder: Decoder
    hidden: int = 1024
    inner: int = 4096
    layers: int = 24
    heads: int = 16
    pixels: int = 336
    patch: int = 14

    @property
    def image_tokens(self) -> int:
        """Return how many tokens an image becomes."""
        return (self.pixels // self.patch) ** 2

    @property
    def image_token(self) -> int:
        """Return the token that stands where a part of an image belongs."""
        return self.decoder.vocabulary


SIZES = {
    "13b": Size(DECODERS["13b"]),
    "7b": Size(DECODERS["7b"]),
    "tiny": Size(DECODERS["tiny"], hidden=64, inner=128, layers=2, heads=4, pixels=56),
}


class Llava(LlavaForConditionalGeneration):
    """Hold the model; `recomputes` saves memory in training: what is inside a layer is computed again going back."""

    recomputes = False

    def freeze(self) -> None:
        """Let only the decoder learn."""
        self.model.vision_tower.requires_grad_(requires_grad=False)
        self.model.multi_modal_projector.requires_grad_(requires_grad=False)

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        """Return a score for each token after each token: ids (samples, tokens), pixels (samples, 3, high, wide) uint8.

        Each sample comes with an image, black where its ids have no place for one. Texts are filled up at their ends:
        as each token sees only those before it, no mask is needed.
        """
        decoder = self.model.language_model
        hidden = self._embed(ids, pixels)
        angles = decoder.rotary_emb(hidden, position_ids=torch.arange(ids.shape[1], device=ids.device)[None])
        for layer in decoder.layers:
            # What is computed again is no work of the model: it is not counted.
            if self.recomputes and torch.is_grad_enabled() and ids.device.type != "meta":
                hidden = checkpoint(layer, hidden, position_embeddings=angles, use_reentrant=False)
            else:
                hidden = layer(hidden, position_embeddings=angles)
        scores: Tensor = self.lm_head(decoder.norm(hidden))
        return scores

    def _embed(self, ids: Tensor, pixels: Tensor) -> Tensor:
        """Return what the decoder sees: tokens, and in their places the parts of images."""
        scale = {"device": pixels.device, "dtype": torch.float32}
        mean, deviation = (torch.tensor(of, **scale)[:, None, None] for of in (MEAN, DEVIATION))
        with torch.no_grad():
            scaled = (pixels.float() / 255 - mean) / deviation
            seen = torch.stack(tuple(self.get_image_features(pixel_values=scaled).pooler_output))
        text = self.get_input_embeddings()(ids)
        places = ids == self.config.image_token_id
        which = (places.cumsum(1) - 1).clamp(0, seen.shape[1] - 1)
        parts = seen.gather(1, which[..., None].expand(-1, -1, seen.shape[2]))
        return torch.where(places[..., None], parts.to(text.dtype), text)


def described(size: Size) -> Any:
    """Return transformers' description of a model."""
    tower = CLIPVisionConfig(
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        image_size=size.pixels,
        patch_size=size.patch,
        projection_dim=768,
    )
    return LlavaConfig(
        vision_config=tower,
        text_config=config(size.decoder, extra_tokens=EXTRA_TOKENS),
        image_token_index=size.image_token,
        image_seq_length=size.image_tokens,
    )


def build(size: Size, *, recomputes: bool = False) -> Llava:
    """Return a model whose decoder learns, with random weights; on the meta device it has none."""
    model = Llava(described(size))
    model.recomputes = recomputes
    model.freeze()
    return model


def fill_weights(model: torch.nn.Module, folder: Path | None, seed: int) -> None:
    """Give a model that has room but no values its weights: those of a folder, or random ones. Raises ConfigError.

    Of a model that is divided over ranks, each rank fills its own rows. Files are mapped into memory in the precision
    that they have, and a rank reads only its rows: nowhere is the whole model in memory.
    """
    stored = _find_weights(folder) if folder is not None else {}
    parameters = dict(model.named_parameters())
    if folder is not None and (absent := sorted(parameters.keys() - stored.keys())):
        raise no_model(folder, f"{len(absent)} weights are not there, {absent[0]} among them")
    with torch.no_grad():
        for name, parameter in parameters.items():
            own, rows = _get_rows(parameter)
            if folder is None:
                own.copy_(_draw(name, parameter, seed)[rows])
                continue
            values = stored[name]
            if list(values.get_shape()) != list(parameter.shape):
                shapes = f"{list(values.get_shape())}, that of the size asked for {list(parameter.shape)}"
                raise no_model(folder, f"{name} has the shape {shapes}")
            own.copy_(values[rows])
        _fill_buffers(model)


def _find_weights(folder: Path) -> dict[str, Any]:
    """Return the tensors of a folder's safetensors files by our names for them; none is read. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise no_model(folder, "it has no safetensors files")
    try:
        opened: list[Any] = [safe_open(file, framework="pt") for file in files]
        return {_rename_weight(name): file.get_slice(name) for file in opened for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise no_model(folder, str(error)) from error


def _rename_weight(name: str) -> str:
    """Return today's name of a weight; transformers has changed the names of this model several times."""
    for prefix, now in (
        ("model.", ""),
        ("language_model.lm_head.", "lm_head."),
        ("language_model.model.", "language_model."),
        ("vision_tower.vision_model.", "vision_tower."),
    ):
        name = now + name.removeprefix(prefix) if name.startswith(prefix) else name
    return name if name.startswith("lm_head.") else f"model.{name}"


def _get_rows(parameter: Tensor) -> tuple[Tensor, slice]:
    """Return the part of a parameter that this rank holds, and which rows of the whole it is."""
    if not isinstance(parameter, DTensor):
        return parameter, slice(0, len(parameter))
    ranks, rank = parameter.device_mesh.size(), parameter.device_mesh.get_local_rank()
    each = -(-len(parameter) // ranks)  # as FSDP divides: the last ranks may have fewer rows, or none
    begin = min(rank * each, len(parameter))
    return parameter.to_local(), slice(begin, min(begin + each, len(parameter)))


def _draw(name: str, parameter: Tensor, seed: int) -> Tensor:
    """Draw all rows of one parameter, the same for any number of ranks, spread as transformers spreads them."""
    if parameter.ndim == 1 and not name.endswith("embedding"):
        return torch.full(parameter.shape, float("norm" in name and not name.endswith("bias")), device=parameter.device)
    random = torch.Generator(parameter.device).manual_seed(seed + zlib.crc32(name.encode()))
    return torch.randn(parameter.shape, generator=random, device=parameter.device) * SPREAD


def _fill_buffers(model: Any) -> None:
    """Compute the values that are neither learned nor stored: numbers of places and frequencies of rotation."""
    places, rotary = model.model.vision_tower.embeddings.position_ids, model.model.language_model.rotary_emb
    places.copy_(torch.arange(places.shape[1])[None])
    for name, values in type(rotary)(rotary.config).named_buffers():
        getattr(rotary, name).copy_(values)


def forward(model: torch.nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return a score for each token after each token of a batch."""
    scores: Tensor = model(batch["ids"], batch["pixels"])
    return scores


def loss(model: torch.nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean loss over all tokens that are to be learned."""
    scores, wanted = _align(forward(model, batch), batch)
    return _sum_losses(scores, wanted) / (wanted != IGNORED).sum().clamp(min=1)


def score(scores: Tensor, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the sum of losses, how many tokens were right, and how many there were to learn."""
    scores, wanted = _align(scores, batch)
    sums = _sum_losses(scores, wanted), (scores.argmax(1) == wanted).sum(), (wanted != IGNORED).sum()
    return dict(zip(("loss", "right", "learned"), (figure.item() for figure in sums), strict=True))


def _align(scores: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the scores for each token that follows another, and which it should have been."""
    return scores[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()


def _sum_losses(scores: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(scores, wanted, ignore_index=IGNORED, reduction="sum")
