"""Tiny networks of transformers, built from configurations, with data that they can learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey

transformers = pytest.importorskip("transformers")

WORDS = 20
SIZES: dict[str, Any] = dict(
    vocab_size=WORDS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)


def bert(kind: str = "SequenceClassification", labels: int = 3, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES, num_labels=labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options
    )
    return getattr(transformers, f"BertFor{kind}")(config)


def distilbert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=WORDS,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=32,
        max_position_embeddings=32,
        num_labels=3,
    )
    return transformers.DistilBertForSequenceClassification(config)


def llama(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, num_key_value_heads=1, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """Its linear layers are stored inputs first, and its head is its embedding."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def vit() -> nn.Module:
    torch.manual_seed(0)
    sizes = {name: SIZES[name] for name in SIZES if name not in ("vocab_size", "max_position_embeddings")}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    return transformers.ViTForImageClassification(config)


def pictures(samples: int = 8, seed: int = 0) -> list[dict[str, Tensor]]:
    """Rows for a classifier of images: the label is the third that their mean brightness falls into."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(samples, 1, 8, 8, generator=generator)
    brightness = pixels.mean((1, 2, 3))
    return rows({"pixel_values": pixels, "labels": (brightness.argsort().argsort() * 3) // samples})


def batch(samples: int = 8, length: int = 6, seed: int = 0) -> dict[str, Tensor]:
    """Token numbers and a mask that hides the end of some rows."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, WORDS, (samples, length), generator=generator)
    mask = torch.ones_like(tokens)
    mask[1::2, -2:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def sentences(samples: int = 8, seed: int = 0) -> list[dict[str, Tensor]]:
    """Rows for a sequence classifier: the label is the first token's remainder."""
    columns = batch(samples, seed=seed)
    columns["labels"] = columns["input_ids"][:, 0] % 3
    return rows(columns)


def rows(columns: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def ensemble(network: nn.Module, method: covey.Method | None = None, **options: Any) -> covey.Ensemble:
    method = covey.LowRank(members=3, rank=4) if method is None else method
    takes_images = getattr(network, "main_input_name", None) == "pixel_values"
    example = {"pixel_values": torch.zeros(2, 1, 8, 8)} if takes_images else batch(2)
    made = covey.convert(network, method, example=example, check=False, **options)
    made.run = "loop"
    return made


def stirred(made: covey.Ensemble, scale: float = 0.3) -> covey.Ensemble:
    """Members that were pushed apart, as training does."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in made.parts.values():
            for group in part.groups():
                for parameter in group.parameters if group.owner == "member" else ():
                    parameter += scale * torch.randn(parameter.shape, generator=generator)
    return made
