"""Causal language models of transformers, whose labels transformers moves by one position inside the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import DataError

_NAMES = ("ForCausalLM", "LMHeadModel")
"""How transformers calls them."""


def check_not_copied(
    network: nn.Module, inputs: Mapping[str, Any], labels: Tensor, ignored: int | None
) -> None:
    """Refuse labels that are a causal language model's own inputs: it would learn, or be scored, to copy them.

    Args:
        network: a network, or one without its memory.
        inputs: what it is given by keyword.
        labels: one for each position of its answers, which are compared as they stand.
        ignored: the label of what does not count.
    """
    tokens = inputs.get("input_ids")
    if not type(network).__name__.endswith(_NAMES) or torch.compiler.is_compiling():
        return
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape != labels.shape:
        return
    counted = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    # rows of one token over and over are the same however they are moved
    varies = bool((tokens[:, 1:] != tokens[:, :-1]).any())
    if varies and counted.any() and torch.equal(tokens[counted], labels[counted]):
        raise DataError(
            f"labels are the input_ids themselves, so {type(network).__name__} would learn or be scored to repeat the "
            "token that it reads. transformers moves labels by one position inside the network; here give each "
            "position the next token, labels[:, :-1] = input_ids[:, 1:] and labels[:, -1] = -100 with "
            "ignore_index=-100, or take covey.hf.EnsembleTrainer and its scores(), which move them."
        )
