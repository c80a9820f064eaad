"""Text from an ensemble of language models, with the uncertainty of every token."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.ensemble import Ensemble
from covey.errors import DataError, OptionError
from covey.extras import load
from covey.hf.network import check_tokenizer, check_tokens, vocabulary
from covey.options import check_above, check_whole, fits, is_number


@dataclass(frozen=True)
class Generation:
    """Tokens that an ensemble wrote, and how sure it was of each.

    Positions after a row's end hold the padding token, and zeros in everything else.

    Args:
        tokens: the new tokens, (B, T).
        log_probs: the logarithm of each one's mean probability over members, before temperature and cuts, (B, T).
        entropy: of the mean probability that each was chosen from, in nats: total uncertainty, (B, T).
        mutual_information: the part of it that members do not agree on, (B, T).
        lengths: how many tokens each row has, its end included, (B,).
        texts: the new tokens as text, where a tokenizer was given.
    """

    tokens: Tensor
    log_probs: Tensor
    entropy: Tensor
    mutual_information: Tensor
    lengths: Tensor
    texts: list[str] | None = field(default=None)

    def __repr__(self) -> str:
        rows, steps = self.tokens.shape
        return f"Generation(rows={rows}, tokens={steps})"


@torch.no_grad()
def generate(
    ensemble: Ensemble,
    prompt: Tensor | Sequence[Sequence[int]] | str | Sequence[str],
    *,
    attention_mask: Tensor | None = None,
    tokenizer: Any = None,
    max_new_tokens: int = 20,
    sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    use_cache: bool = True,
) -> Generation:
    """Continue texts: at each token the members' probabilities are averaged, and one token is chosen for all of them.

    Args:
        ensemble: of a causal language model.
        prompt: token numbers (B, T), as a tensor or lists, or text with `tokenizer`.
        attention_mask: (B, T), zeros where a shorter prompt is padded, which must be on the left.
        tokenizer: makes tokens of text and text of tokens.
        max_new_tokens: where a row ends that did not end by itself.
        sample: whether tokens are drawn; else the most probable one is taken.
        temperature: of the mean probability that is drawn from; below 1 makes likely tokens likelier.
        top_k: draw among this many most probable tokens.
        top_p: draw among the fewest tokens that together have this probability.
        seed: of the draws; the global random state stays as it is.
        eos_token_id: the token, or tokens, that end a row; by default the network's.
        pad_token_id: what follows a row's end; by default the network's, else its end.
        use_cache: whether each member keeps its keys and values, so that a new token costs one position and not all;
            False where a network cannot.
    """
    _check_options(sample, temperature, top_k, top_p, max_new_tokens)
    check_whole("seed", seed, 0)
    _check_network(ensemble)
    tokens, mask = _prompt(ensemble, prompt, attention_mask, tokenizer)
    ends, padding = _ends(ensemble, eos_token_id, pad_token_id)
    _check_length(ensemble, tokens.shape[1] + max_new_tokens)
    draw = torch.Generator(tokens.device).manual_seed(seed)
    finished = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    found: list[tuple[Tensor, ...]] = []
    with ensemble.evaluating(), _looping(ensemble):
        reader = _Reader(ensemble, use_cache)
        _check_padding(reader, tokens, mask)
        for _ in range(max_new_tokens):
            answer = ensemble.answer(reader.next(tokens, mask))
            assert isinstance(answer, Prediction)
            log_probs = answer.log_probs
            chosen = log_probs.argmax(-1)
            if sample:
                chosen = _drawn(log_probs, temperature, top_k, top_p, draw)
            chosen = chosen.masked_fill(finished, padding)
            certain = (log_probs.gather(-1, chosen[:, None])[:, 0], answer.entropy, answer.mutual_information)
            found.append((chosen, *(value.masked_fill(finished, 0) for value in certain), ~finished))
            finished = finished | torch.isin(chosen, ends)
            if finished.all():
                break
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    written, log_probs, entropy, information, counts = (
        torch.stack(column, 1) for column in zip(*found, strict=True)
    )
    lengths = counts.sum(1)
    texts = None
    if tokenizer is not None:
        kept = [row[:length] for row, length in zip(written.tolist(), lengths.tolist(), strict=True)]
        texts = [tokenizer.decode(row, skip_special_tokens=True) for row in kept]
    return Generation(written, log_probs, entropy, information, lengths, texts)


class _Reader:
    """Members' logits of the next token, (M, B, V).

    With caches, every member keeps its keys and values in one of transformers' caches, which the network fills in
    place, and reads only what is new.
    """

    def __init__(self, ensemble: Ensemble, use_cache: bool) -> None:
        network = ensemble.skeleton()
        self.ensemble = ensemble
        self.taken = inspect.signature(network.forward).parameters
        self.caches: list[Any] | None = None
        if use_cache and "past_key_values" in self.taken:
            make = load("transformers").DynamicCache
            self.caches = [make(config=getattr(network, "config", None)) for _ in range(ensemble.members)]

    def next(self, tokens: Tensor, mask: Tensor) -> Tensor:
        if self.caches is None:
            options = {"use_cache": False} if "use_cache" in self.taken else {}
            outputs = self.ensemble(**self._given(tokens, mask, 0), **options)
        else:
            seen = self.caches[0].get_seq_length()
            given = self._given(tokens, mask, seen)
            each = []
            for k, cache in enumerate(self.caches):
                each.append(self.ensemble(**given, members=[k], past_key_values=cache, use_cache=True))
            outputs = torch.cat(each)
            if any(cache.get_seq_length() != tokens.shape[1] for cache in self.caches):
                # the network keeps no cache, or another kind: what was read so far would be forgotten
                self.caches = None
                return self.next(tokens, mask)
        if outputs.ndim != 4:
            raise OptionError(
                f"the network answers with {tuple(outputs.shape[1:])} for {tuple(tokens.shape)} tokens; a causal "
                "language model gives logits (rows, tokens, vocabulary)."
            )
        return outputs[:, :, -1].float()

    def _given(self, tokens: Tensor, mask: Tensor, seen: int) -> dict[str, Tensor]:
        given = {"input_ids": tokens[:, seen:], "attention_mask": mask}
        if "position_ids" in self.taken and not mask.all():
            # positions are counted from the first token of a row, not from its padding; without padding the network
            # counts itself, because not every one begins at 0
            given["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, seen:]
        return given


def _check_padding(reader: _Reader, tokens: Tensor, mask: Tensor) -> None:
    """Refuse padding that the network does not pass over, tried on the row that has most of it."""
    if mask.all():
        return
    row = int(mask.sum(1).argmin())
    start = int((mask[row] == 0).sum())
    alone = _Reader(reader.ensemble, use_cache=False)
    padded = alone.next(tokens[row : row + 1], mask[row : row + 1]).softmax(-1)
    plain = alone.next(tokens[row : row + 1, start:], mask[row : row + 1, start:]).softmax(-1)
    exact = next(reader.ensemble.parameters()).dtype in (torch.float32, torch.float64)
    apart = float((padded - plain).abs().max())
    if apart > (1e-4 if exact else 0.05):
        raise OptionError(
            f"the network does not pass over padding: row {row} alone gives the next token other probabilities than "
            f"padded by {start} (by {apart:.2g}). Give prompts of one length, or one prompt at a time."
        )


@contextmanager
def _looping(ensemble: Ensemble) -> Iterator[None]:
    """Members one after another, because a cache is a member's own."""
    before, ensemble.runs = ensemble.runs, {"train": "loop", "eval": "loop"}
    try:
        yield
    finally:
        ensemble.runs = before


def _drawn(
    log_probs: Tensor, temperature: float, top_k: int | None, top_p: float | None, draw: torch.Generator
) -> Tensor:
    """A token of each row, (B,), from what the cuts leave of (B, V)."""
    probs = (log_probs / temperature).softmax(-1)
    ordered, order = probs.sort(-1, descending=True)
    if top_k is not None:
        ordered[:, top_k:] = 0
    if top_p is not None:
        kept = ordered / ordered.sum(-1, keepdim=True)
        # a token stays if those before it have not reached the share yet; the first one always stays
        ordered = ordered.masked_fill(kept.cumsum(-1) - kept >= top_p, 0)
    place = torch.multinomial(ordered, 1, generator=draw)
    return order.gather(-1, place)[:, 0]


def _prompt(
    ensemble: Ensemble,
    prompt: Tensor | Sequence[Sequence[int]] | str | Sequence[str],
    mask: Tensor | None,
    tokenizer: Any,
) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) and their mask, on the ensemble's device."""
    network = ensemble.skeleton()
    if tokenizer is not None:
        if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
            raise OptionError(f"tokenizer is one of transformers'; got {type(tokenizer).__name__}.")
        check_tokenizer(network, tokenizer)
    if isinstance(prompt, Tensor):
        tokens = prompt
    elif not _is_text(prompt):
        tokens = _numbers(prompt)
    else:
        if tokenizer is None:
            raise OptionError("text needs a tokenizer: generate(ensemble, text, tokenizer=...).")
        tokens, mask = _tokenized([prompt] if isinstance(prompt, str) else [*map(str, prompt)], tokenizer)
    counts = not tokens.is_floating_point() and tokens.dtype != torch.bool
    if tokens.ndim != 2 or not tokens.numel() or not counts:
        raise DataError(
            f"the prompt is token numbers (rows, tokens), at least one; got {tokens.dtype} of shape "
            f"{tuple(tokens.shape)}."
        )
    mask = torch.ones_like(tokens) if mask is None else torch.as_tensor(mask)
    if mask.shape != tokens.shape:
        raise DataError(
            f"attention_mask has shape {tuple(mask.shape)}; expected the tokens', {tuple(tokens.shape)}."
        )
    mask = mask.long()
    if (mask.diff(dim=1) < 0).any() or not mask[:, -1].all():
        raise DataError(
            "the prompt is padded on the right, where new tokens come: pad on the left (tokenizer.padding_side='left')."
        )
    check_tokens(network, {"input_ids": tokens})
    device = next(ensemble.parameters()).device
    return tokens.to(device), mask.to(device)


def _tokenized(texts: Sequence[str], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Tokens (B, T), padded on the left, and their mask.

    Padding is not attended to, so any token will do where the tokenizer has none for it, as GPT-2's has not.
    """
    rows = tokenizer(texts)["input_ids"]
    padding = tokenizer.pad_token_id or 0
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), padding)
    mask = torch.zeros_like(tokens)
    for k, row in enumerate(rows):
        if not row:
            raise DataError(f"the prompt's text {k} has no tokens; there is nothing to continue.")
        start = longest - len(row)
        tokens[k, start:] = torch.tensor(row, dtype=torch.long)
        mask[k, start:] = 1
    return tokens, mask


def _is_text(prompt: Any) -> bool:
    """Whether this is one text, or several."""
    if isinstance(prompt, str):
        return True
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(isinstance(row, str) for row in prompt)


def _numbers(prompt: Any) -> Tensor:
    """Token numbers that are no tensor yet."""
    try:
        return torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            "the prompt is text, or token numbers (rows, tokens) in rows of one length; pad shorter ones on the left, "
            "and say where with attention_mask."
        ) from error


def _ends(ensemble: Ensemble, eos: int | Sequence[int] | None, padding: int | None) -> tuple[Tensor, int]:
    """The tokens that end a row, and the one that follows its end."""
    network = ensemble.skeleton()
    device = next(ensemble.parameters()).device
    known = vocabulary(network)
    for name, given in (("eos_token_id", eos), ("pad_token_id", padding)):
        whole = fits(given, int | None) or (name == "eos_token_id" and fits(given, Sequence[int]))
        if not whole:
            raise OptionError(f"{name} is the number of a token; got {given!r}.")
    if padding is not None and known is not None and not 0 <= padding < known:
        raise OptionError(f"pad_token_id is {padding}, and the network has tokens 0 to {known - 1}.")
    for source in (getattr(network, "generation_config", None), getattr(network, "config", None)):
        eos = getattr(source, "eos_token_id", None) if eos is None else eos
        padding = getattr(source, "pad_token_id", None) if padding is None else padding
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if padding is None or padding < 0:  # some configurations say -1 for none
        padding = ends[0] if ends else 0
    return torch.tensor(ends, dtype=torch.long, device=device), padding


def _check_network(ensemble: Ensemble) -> None:
    """Refuse what is no ensemble, and networks that do not continue texts."""
    if not isinstance(ensemble, Ensemble):
        raise OptionError(f"expected an ensemble, as covey.convert gives it; got {type(ensemble).__name__}.")
    network = ensemble.skeleton()
    name = type(network).__name__
    taken = inspect.signature(network.forward).parameters.values()
    if not any(p.name == "input_ids" or p.kind is p.VAR_KEYWORD for p in taken):
        raise OptionError(
            f"{name} takes no input_ids; generate takes ensembles of causal language models of transformers."
        )
    if getattr(getattr(network, "config", None), "is_encoder_decoder", False):
        raise OptionError(
            f"{name} has an encoder and a decoder; generate continues texts of causal language models."
        )
    can = getattr(network, "can_generate", None)
    if can is not None and not can():
        raise OptionError(
            f"{name} does not generate text; generate takes ensembles of causal language models."
        )


def _check_length(ensemble: Ensemble, length: int) -> None:
    config = getattr(ensemble.skeleton(), "config", None)
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise OptionError(
            f"the prompt and max_new_tokens are {length} tokens, and the network has positions for {most}."
        )


def _check_options(
    sample: bool, temperature: float, top_k: int | None, top_p: float | None, max_new_tokens: int
) -> None:
    check_whole("max_new_tokens", max_new_tokens)
    check_above("temperature", temperature)
    if top_k is not None:
        check_whole("top_k", top_k)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise OptionError(f"top_p is a probability above 0, at most 1; got {top_p!r}.")
    if not sample and (temperature != 1 or top_k is not None or top_p is not None):
        raise OptionError("temperature, top_k and top_p are for draws: set sample=True.")
