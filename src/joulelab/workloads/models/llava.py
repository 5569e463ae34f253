"""Answer questions on images: LLaVA-1.5, CLIP-L/14 and a projector that stay as they are, a Llama 2 that is trained.

The model is transformers' own, with its names of weights; only the way through it is ours: it waits for nothing on the
device, takes texts without an image beside those with one, and can be counted where nothing is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from joulelab.workloads.models.llama import DECODERS, Decoder, config, no_model, weighted
from joulelab.workloads.models.llama import described as described_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

# Tokens beside Llama's: an image, padding, and some to make a round number.
EXTRA_TOKENS = 64
IGNORED = -100
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


def build(size: Size, *, weights: Path | None = None, recomputes: bool = False) -> Llava:
    """Return a model whose decoder learns, with random weights or those of a folder. Raises ConfigError.

    On the meta device it has no weights at all.
    """
    if weights is None or torch.get_default_device().type == "meta":
        model = Llava(described(size))
    else:
        model = _load(weights, size)
    model.recomputes = recomputes
    model.freeze()
    return model


def _load(folder: Path, size: Size) -> Llava:
    wanted, found = (_shapes(of) for of in (described(size), described_in(folder)))
    if wrong := [name for name in sorted(wanted.keys() | found.keys()) if wanted.get(name) != found.get(name)]:
        name = wrong[0]
        raise no_model(folder, f"{name} has the shape {found.get(name)}, that of the size asked for {wanted.get(name)}")
    model: Llava = weighted(Llava, folder, torch.float32)
    return model


def _shapes(described: Any) -> dict[str, list[int]]:
    if not isinstance(described, LlavaConfig):
        return {}
    with torch.device("meta"):
        return {name: list(p.shape) for name, p in Llava(described).named_parameters()}


def loss(model: torch.nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean loss over all tokens that are to be learned."""
    scores, wanted = _answers(model, batch)
    return _summed(scores, wanted) / (wanted != IGNORED).sum().clamp(min=1)


def score(model: torch.nn.Module, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the sum of losses, how many tokens were right, and how many there were to learn."""
    scores, wanted = _answers(model, batch)
    sums = _summed(scores, wanted), (scores.argmax(1) == wanted).sum(), (wanted != IGNORED).sum()
    return dict(zip(("loss", "right", "learned"), (figure.item() for figure in sums), strict=True))


def _answers(model: torch.nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the scores for each token that follows another, and which it should have been."""
    scores = model(batch["ids"], batch["pixels"])
    return scores[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()


def _summed(scores: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(scores, wanted, ignore_index=IGNORED, reduction="sum")
