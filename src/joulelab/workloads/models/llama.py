"""Build Llama 2 decoders by transformers: with random weights, or with those of a local folder; nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = 1, 2  # what Llama's texts begin and end with
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Decoder:
    """Hold the size of a decoder: width of its layers and of what is in them, their number, heads, tokens known."""

    hidden: int
    inner: int
    layers: int
    heads: int
    vocabulary: int = 32000


DECODERS = {
    "7b": Decoder(4096, 11008, 32, 32),
    "13b": Decoder(5120, 13824, 40, 40),
    "tiny": Decoder(64, 128, 2, 4, vocabulary=1000),
}


def config(decoder: Decoder, *, extra_tokens: int = 0) -> Any:
    """Return transformers' description of a decoder that knows some more tokens than Llama's."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=decoder.vocabulary + extra_tokens,
        hidden_size=decoder.hidden,
        intermediate_size=decoder.inner,
        num_hidden_layers=decoder.layers,
        num_attention_heads=decoder.heads,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        bos_token_id=BEGIN,
        eos_token_id=END,
    )


def described(folder: Path) -> Any:
    """Return transformers' description of the decoder in a folder. Raises ConfigError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise no_model(folder, error) from error


def build(described: Any, dtype: Any) -> Any:
    """Return a decoder with random weights, on the device that is torch's default now."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(described, dtype=dtype)


def load(folder: Path, dtype: Any) -> Any:
    """Return the decoder in a folder, with its weights. Raises ConfigError."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise no_model(folder, error) from error


def no_model(folder: Path, error: Exception) -> ConfigError:
    """Return what to say of a folder that transformers cannot read a model from."""
    why = str(error).strip().partition("\n")[0]
    advice = "name a folder that transformers' save_pretrained has written"
    return ConfigError("there is no model that can be read", where=str(folder), why=why, next=advice)
