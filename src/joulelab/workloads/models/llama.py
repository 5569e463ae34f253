"""Build Llama 2 decoders by transformers: with random weights, or with those of a local folder; nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = 1, 2  # what Llama's texts begin and end with


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
    """Return transformers' description of the model in a folder. Raises ConfigError."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise no_model(folder, "it has no config.json")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise no_model(folder, str(error)) from error


def build(described: Any, dtype: Any) -> Any:
    """Return a decoder with random weights, on the device that is torch's default now."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(described, dtype=dtype)


def load(folder: Path, dtype: Any) -> Any:
    """Return the decoder in a folder, with its weights. Raises ConfigError.

    Weights that are missing are refused: transformers would draw them, and go on.
    """
    from transformers import AutoModelForCausalLM

    settings = {"local_files_only": True, "dtype": dtype, "output_loading_info": True}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(folder, **settings)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise no_model(folder, str(error)) from error
    if absent := sorted(found["missing_keys"]):
        raise no_model(folder, f"{len(absent)} weights are not there, {absent[0]} among them")
    return model


def no_model(folder: Path, why: str) -> ConfigError:
    """Return what to say of a folder that no model can be read from."""
    advice = "name a folder that transformers' save_pretrained has written"
    first = why.strip().partition("\n")[0]
    return ConfigError("there is no model that can be read", where=str(folder), why=first, next=advice)
