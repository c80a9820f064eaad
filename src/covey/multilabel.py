"""Answers of a network whose labels do not exclude each other: an image may show a dog and a cat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.answer_table import SHOWN, AnswerTable, PrintsAsTable, places
from covey.tables import counted


@dataclass(frozen=True)
class MultiLabel(PrintsAsTable):
    """The combined answer of an ensemble where several labels may be true: each label's mean probability.

    Each label is a question of its own, so all that is said of uncertainty is said per label, in nats.

    Args:
        logits: members' logits, (M, B, ..., L); a label's probability is their sigmoid.

    >>> answer = MultiLabel(torch.tensor([[[3.0, -1.0]], [[3.0, 1.0]]]))
    >>> answer.probs
    tensor([[0.9526, 0.5000]])
    >>> answer.labels
    tensor([[ True, False]])
    >>> [round(value, 4) for value in answer.mutual_information[0].tolist()]
    [0.0, 0.1109]
    """

    logits: Tensor

    def __repr__(self) -> str:
        members, *batch, labels = self.logits.shape
        return f"MultiLabel(members={members}, batch={tuple(batch)}, labels={labels})"

    def _table(self) -> AnswerTable:
        members, *batch, labels = self.logits.shape
        samples = math.prod(batch)
        first = MultiLabel(self.logits.detach().reshape(members, samples, labels)[:, :SHOWN])
        rows = []
        for place, true, entropy, information in zip(
            places(batch),
            first.labels.tolist(),
            first.entropy.sum(-1).tolist(),
            first.mutual_information.sum(-1).tolist(),
            strict=False,
        ):
            named = ", ".join(str(k) for k, is_true in enumerate(true) if is_true) or "none"
            rows.append((place, named, f"{entropy:.4f}", f"{information:.4f}"))
        return AnswerTable(
            f"MultiLabel of {counted(members, 'member')} for a batch {tuple(batch)}, {counted(labels, 'label')}",
            ("sample", "labels", "entropy", "mutual information"),
            rows,
            samples,
        )

    @property
    def decisive(self) -> Tensor:
        """What is finite only if the whole answer is."""
        return self.logits

    @property
    def answered(self) -> Tensor:
        """What must be finite for a sample's answer to be one, (B, ...)."""
        return self.probs

    @cached_property
    def member_probs(self) -> Tensor:
        """Probability of each label by each member, (M, B, ..., L)."""
        return self.logits.sigmoid()

    @cached_property
    def probs(self) -> Tensor:
        """Mean probability of each label, (B, ..., L)."""
        return self.member_probs.mean(0)

    @cached_property
    def labels(self) -> Tensor:
        """Which labels are more probable than not, bool (B, ..., L)."""
        return self.probs > 0.5

    @cached_property
    def log_odds(self) -> Tensor:
        """log p - log(1 - p) of the mean probability, (B, ..., L), exact where p is near 0 or 1."""
        members = math.log(len(self.logits))
        yes = torch.logsumexp(F.logsigmoid(self.logits), 0) - members
        no = torch.logsumexp(F.logsigmoid(-self.logits), 0) - members
        return yes - no

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of each label's mean probability, total uncertainty, (B, ..., L)."""
        return _entropy(self.probs)

    @cached_property
    def expected_entropy(self) -> Tensor:
        """Mean of the members' entropies, uncertainty in the data, (B, ..., L)."""
        return _entropy(self.member_probs).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean minus mean entropy, what the members do not agree on, (B, ..., L). Never below 0."""
        return (self.entropy - self.expected_entropy).clamp_min(0)


def _entropy(probs: Tensor) -> Tensor:
    """Of a yes with this probability."""
    return torch.special.entr(probs) + torch.special.entr(1 - probs)
