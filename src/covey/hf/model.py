"""An ensemble behind the interface of transformers: columns of a batch in, a ModelOutput out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.combine import Answer, MultiLabel, Prediction, Regression, class_axis
from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.extras import explained
from covey.hf.network import (
    IGNORED,
    check_labels,
    check_tokens,
    decoder_inputs,
    is_causal,
    is_multi_label,
    is_sequence_to_sequence,
    networks_of,
)
from covey.losses import LossName, loss_of, member_losses

try:
    from transformers.utils import ModelOutput
except ModuleNotFoundError as error:
    raise explained(error) from None


@dataclass
class EnsembleOutput(ModelOutput):
    """What an ensemble answers, as transformers and its trainers read it.

    Args:
        loss: while training the sum over members of each one's mean loss; in eval mode the loss of the combined answer,
            so that for class labels it is the negative log-likelihood that `covey.evaluate` reports.
        logits: the combined answer, (B, ..., C): for class labels the logarithm of the members' mean probability
            (calibrated where the ensemble has a temperature); for several labels at once the logit of the mean
            probability of each; for regression the mean. None while training with labels.
        member_logits: members' outputs, (B, ..., M, C). Members stand beside the classes and not in front, because
            trainers join batches along the first axis and pad the second.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    member_logits: Tensor | None = None


class EnsembleModel(nn.Module):
    """An ensemble that is called like a transformers model, with labels and without.

    Args:
        ensemble: of a network that takes the batch's columns as keyword arguments.
        loss: as in `Ensemble.loss`; by default "binary" where the network's configuration says
            `problem_type="multi_label_classification"`, else the one of the ensemble's task.
        smoothing: label smoothing of a cross-entropy.
        ignore_index: the label of what does not count.
        shift_labels: whether labels are the inputs themselves, so that each position answers for the next one's; by
            default for causal language models, as transformers has it.
    """

    accepts_loss_kwargs = True  # tells transformers' Trainer that the loss is over all accumulated batches

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        loss: LossName | None = None,
        smoothing: float = 0.0,
        ignore_index: int = IGNORED,
        shift_labels: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(ensemble, Ensemble):
            raise OptionError(
                f"expected an ensemble, as covey.convert gives it; got {type(ensemble).__name__}."
            )
        self.ensemble = ensemble
        network = ensemble.skeleton()
        several = ensemble.task == "classification" and is_multi_label(network)
        usual = "binary" if several else loss_of(ensemble.task)
        if callable(usual):
            raise OptionError(
                f"transformers' trainers have no place for {ensemble.task}; train with covey.fit."
            )
        self.loss: LossName = loss or usual
        self.smoothing, self.ignore_index = smoothing, ignore_index
        self.shift_labels = is_causal(network) if shift_labels is None else shift_labels
        self._makes_decoder_inputs = is_sequence_to_sequence(network)
        self.config = getattr(network, "config", None)
        self.main_input_name = getattr(network, "main_input_name", "input_ids")
        self.loss_type = "ForCausalLM" if self.shift_labels else getattr(network, "loss_type", None)

    def forward(
        self, *, labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None, **inputs: Any
    ) -> EnsembleOutput:
        """The loss, while training; the combined answer and the members' in eval mode or without labels.

        Args:
            labels: class numbers, numbers to regress on, or for several labels at once zeros and ones (B, C).
            num_items_in_batch: how many labels count in all batches whose gradients are added up; the loss is then
                this batch's part of the mean over all of them.
            **inputs: what the network takes.
        """
        check_tokens(self.ensemble.skeleton(), inputs)
        if labels is not None:
            check_labels(self.ensemble, labels, self.loss, self.ignore_index)
            if self._makes_decoder_inputs and not inputs.keys() & {
                "decoder_input_ids",
                "decoder_inputs_embeds",
            }:
                network = self.ensemble.skeleton()
                inputs["decoder_input_ids"] = decoder_inputs(network, labels, self.ignore_index)
            labels = self.shifted(labels)
            if self.training:
                return EnsembleOutput(loss=self._training_loss(inputs, labels, num_items_in_batch))
        outputs = self.ensemble(**inputs)
        found = self.ensemble.answer(outputs)
        logits = self._combined(outputs, found)
        loss = None
        if labels is not None:
            loss = self._part_of_mean(self._answers_loss(found, logits, labels), labels, num_items_in_batch)
        return EnsembleOutput(loss=loss, logits=logits, member_logits=_members_last(self.ensemble, outputs))

    def shifted(self, labels: Tensor) -> Tensor:
        """Labels of the positions that answer for them: the next one's in a causal language model."""
        if not self.shift_labels:
            return labels
        return F.pad(labels[..., 1:], (0, 1), value=self.ignore_index)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Compute activations anew in the backward pass, as `TrainingArguments(gradient_checkpointing=True)` asks.

        Args:
            **options: those of the network's own method of this name.
        """
        for network in networks_of(self.ensemble):
            enable = getattr(network, "gradient_checkpointing_enable", None)
            if enable is None:
                raise OptionError(
                    f"{type(network).__name__} has no gradient checkpointing of its own; leave it off."
                )
            enable(**options)
        # the network's checkpoints ask for gradients inside its forward pass, which vmap does not allow
        self.ensemble.runs["train"] = "loop"

    def _training_loss(self, inputs: dict[str, Any], labels: Tensor, items: Tensor | int | None) -> Tensor:
        loss = self.ensemble.loss(
            inputs, labels, loss=self.loss, smoothing=self.smoothing, ignore_index=self.ignore_index
        )
        return self._part_of_mean(loss, labels, items)

    def _part_of_mean(self, loss: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """The mean over this batch's labels, weighted with their share: its part of the mean over all of them.

        Without it the Trainer, which multiplies by the number of processes, would report as many times the loss.
        """
        if items is None:
            return loss
        count = (labels != self.ignore_index).sum()
        return loss * (count / torch.as_tensor(items, device=loss.device).clamp_min(1))

    def _combined(self, outputs: Tensor, found: Answer) -> Tensor:
        """One answer, with the classes last."""
        if isinstance(found, Regression):
            return found.mean
        if isinstance(found, MultiLabel):
            return found.log_odds
        assert isinstance(found, Prediction)
        if self.loss != "binary":
            return found.log_probs
        # the mean over members of each label's own probability, as a logit; log M is in both and falls out
        yes = torch.logsumexp(F.logsigmoid(found.logits), 0)
        no = torch.logsumexp(F.logsigmoid(-found.logits), 0)
        return yes - no

    def _answers_loss(self, found: Answer, logits: Tensor, labels: Tensor) -> Tensor:
        if isinstance(found, Regression) and found.member_variance is not None:
            goal = labels.reshape(logits.shape).to(logits.dtype)
            return F.gaussian_nll_loss(found.mean, goal, found.variance, full=True)
        answer = logits[None].float()
        losses = member_losses(answer, labels, self.loss, ignore_index=self.ignore_index, class_dim=-1)
        return losses[0]


def _members_last(ensemble: Ensemble, outputs: Tensor) -> Tensor:
    """(M, B, ..., C) as (B, ..., M, C); where a member gives one number per sample, (M, B) as (B, M)."""
    if ensemble.task != "regression":
        outputs = outputs.movedim(class_axis(outputs, ensemble.class_dim), -1)
    return outputs.movedim(0, -2 if outputs.ndim > 2 else -1)
