"""What a network of transformers says of itself, and whether tokens and labels fit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import DataError
from covey.extras import load
from covey.networks.layers import owner_of

IGNORED = -100
"""The label of what does not count, by transformers' convention."""


def networks_of(ensemble: Ensemble) -> list[nn.Module]:
    """The networks without their tensors, one of each architecture."""
    found: dict[int, nn.Module] = {}
    for k in range(ensemble.members):
        found.setdefault(ensemble.network_of(k), ensemble.skeleton(k))
    return list(found.values())


def is_causal(network: nn.Module) -> bool:
    """Whether this is a causal language model, whose labels are its inputs."""
    if getattr(network, "loss_type", None) == "ForCausalLM":
        return True
    names = load("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return type(network).__name__ in set(names.values())


def is_sequence_to_sequence(network: nn.Module) -> bool:
    """Whether an encoder reads and a decoder writes, whose inputs transformers makes from the labels."""
    auto = load("transformers.models.auto.modeling_auto")
    names = {
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values(),
        *auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.values(),
    }
    return type(network).__name__ in names


def decoder_inputs(network: nn.Module, labels: Tensor, ignored: int) -> Tensor:
    """What a decoder reads that should write the labels: the same, one position later.

    Without it some networks (BART) would read the encoder's inputs, and others stop.
    """
    labels = labels.masked_fill(labels == ignored, IGNORED)
    own = getattr(network, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        return own(labels=labels)
    config: Any = network.config
    start, padding = config.decoder_start_token_id, config.pad_token_id
    if start is None or padding is None:
        raise DataError(
            f"{type(network).__name__} has no decoder_start_token_id or pad_token_id in its configuration, from which "
            "the decoder's inputs would be made; set both, or give decoder_input_ids with the data."
        )
    before = labels[:, :-1]
    return F.pad(before.masked_fill(before == IGNORED, padding), (1, 0), value=start)


def is_multi_label(network: nn.Module) -> bool:
    """Whether its configuration says that a sample may have several labels at once."""
    config = getattr(network, "config", None)
    return getattr(config, "problem_type", None) == "multi_label_classification"


def vocabulary(network: nn.Module) -> int | None:
    """How many tokens the network's embedding has; None where it does not say."""
    finder = getattr(network, "get_input_embeddings", None)
    if finder is None:
        return None
    try:
        embedding = finder()
    except NotImplementedError:  # as for networks of images
        return None
    return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None


def outputs_of_head(ensemble: Ensemble) -> int | None:
    """How many outputs the head has; None where the head was not found or is no plain layer."""
    network = ensemble.skeleton()
    for name in ensemble.records[0]["head"]:
        owner = network.get_submodule(owner_of(name))
        weight = network.get_parameter(name)
        if isinstance(owner, nn.Linear | nn.Embedding) and weight.ndim == 2:
            return weight.shape[0]
    return None


def check_tokens(network: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Refuse token numbers that the embedding does not have."""
    tokens = inputs.get("input_ids")
    known = vocabulary(network)
    if known is None or not isinstance(tokens, Tensor) or tokens.is_floating_point() or not tokens.numel():
        return
    low, high = (int(value) for value in torch.aminmax(tokens))
    if low < 0 or high >= known:
        raise DataError(
            f"input_ids hold the token {high if high >= known else low}; the network's embedding has tokens 0 to "
            f"{known - 1}. The tokenizer is another network's, or tokens were added to it: then call "
            "network.resize_token_embeddings(len(tokenizer)) before covey.convert."
        )


def check_tokenizer(network: nn.Module, tokenizer: Any) -> None:
    """Refuse a tokenizer with more tokens than the embedding has."""
    known = vocabulary(network)
    try:
        size = len(tokenizer)
    except TypeError:  # a processor of images or sound
        return
    if known is not None and size > known:
        raise DataError(
            f"the tokenizer does not fit: it has {size} tokens and the network's embedding {known}. Take the network's "
            "own tokenizer, or call network.resize_token_embeddings(len(tokenizer)) before covey.convert."
        )


def check_labels(ensemble: Ensemble, labels: Tensor, loss: str, ignored: int) -> None:
    """Refuse class numbers that the head has no output for, and numbers that are no classes."""
    classes = outputs_of_head(ensemble)
    if loss != "cross-entropy" or classes is None:
        return
    if labels.is_floating_point():
        if labels.ndim > 1:  # probabilities of the classes
            return
        raise DataError(
            f"labels are {str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}; classes are whole "
            "numbers. For numbers to regress on, say covey.convert(..., task='regression')."
        )
    counted = labels[labels != ignored]
    if not counted.numel():
        return
    low, high = (int(value) for value in torch.aminmax(counted))
    if low < 0 or high >= classes:
        raise DataError(
            f"labels hold {high if high >= classes else low}; the network's head has {classes} outputs, so labels are "
            f"0 to {classes - 1}, or {ignored} for what does not count. Set num_labels in the network's configuration."
        )
