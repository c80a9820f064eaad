"""transformers' Trainer for ensembles."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from covey.ensemble import Ensemble
from covey.errors import OptionError, StoreError
from covey.extras import explained, load
from covey.hf.model import EnsembleModel
from covey.hf.network import check_tokenizer, networks_of
from covey.scores.answered import Answers, answered
from covey.scores.running import score
from covey.store import load as load_ensemble
from covey.store import save
from covey.train.optimizer import without_vectors

if TYPE_CHECKING:
    from covey.scores import Evaluation

load("accelerate")  # or transformers says in its own words that it is missing
try:
    from transformers import Trainer, TrainingArguments
except ModuleNotFoundError as error:
    raise explained(error) from None

LABELS = "labels"
"""What labels are called, unless `TrainingArguments(label_names=...)` says otherwise."""

FOLDER = "ensemble"
"""The folder of a checkpoint, or of `save_model`, that holds the ensemble; `covey.load` reads it."""


class EnsembleTrainer(Trainer):
    """transformers' Trainer that trains an ensemble; its arguments, callbacks and data are those of any Trainer.

    The loss in training is the sum over members of each one's own mean loss, right for every method; in evaluation it
    is the loss of the combined answer. `compute_metrics` sees the combined answer as `predictions` (see
    `covey.hf.EnsembleOutput.logits`). Parameter groups have the method's factors of learning rate and decay; norms and
    biases do not decay. A checkpoint's folder `ensemble` is what `covey.save` writes: safetensors and JSON.

    Args:
        model: an ensemble, or an `EnsembleModel` where the loss should be another.
        args: transformers' TrainingArguments.
        member_predictions: whether predictions are the pair of the combined answer and the members' outputs.
        **options: what Trainer takes besides: `train_dataset`, `eval_dataset`, `processing_class`, `callbacks`, ...
    """

    def __init__(
        self,
        model: Ensemble | EnsembleModel,
        args: TrainingArguments | None = None,
        *,
        member_predictions: bool = False,
        **options: Any,
    ) -> None:
        wrapped = model if isinstance(model, EnsembleModel) else EnsembleModel(model)
        _check(wrapped.ensemble, args, options)
        if args is not None and args.label_smoothing_factor:
            wrapped.smoothing = args.label_smoothing_factor
        self.member_predictions = member_predictions
        super().__init__(wrapped, args, **options)
        # it would smooth the labels of the combined answer, and members train on losses of their own
        self.label_smoother = None

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is trained."""
        return self._wrapped.ensemble

    @property
    def _wrapped(self) -> EnsembleModel:
        return cast(EnsembleModel, self.model)

    # --- training --------------------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's; methods that need it get their running statistics anew at the end."""
        result = super().train(*args, **kwargs)
        if self.ensemble.method.refreshes_statistics:
            self.ensemble.refresh_statistics(self._training_inputs())
        return result

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimiser that the arguments name, over the ensemble's parameter groups."""
        if self.optimizer is not None:
            return self.optimizer
        groups = self.ensemble.param_groups(self.args.learning_rate, self.args.weight_decay)
        if not groups:
            raise OptionError("every parameter of the ensemble is frozen, so there is nothing to train.")
        if self.optimizer_cls_and_kwargs is not None:
            kind, options = self.optimizer_cls_and_kwargs
        else:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, cast(Any, self.model))
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or "params" in options:
            raise OptionError(
                f"optim={self.args.optim!s} chooses its parameters by itself, and would lose the method's learning "
                "rates and decay. Take another, such as adamw_torch, or give optimizers=(optimizer, schedule)."
            )
        self.optimizer = kind(without_vectors(self.ensemble, groups), **options)
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As Trainer's; `TrainingArguments(label_names=...)` may give the column of labels another name."""
        (name,) = self.label_names
        if name != LABELS and name in inputs:
            inputs = {LABELS if key == name else key: value for key, value in inputs.items()}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _training_inputs(self) -> Iterator[dict[str, Any]]:
        for batch in self.get_train_dataloader():
            given = self._prepare_inputs(batch)
            yield {name: value for name, value in given.items() if name not in self.label_names}

    def _set_signature_columns_if_needed(self) -> None:
        # the columns of the data that are kept are the network's arguments, not the ensemble's
        if self._signature_columns is None:
            taken = inspect.signature(self.ensemble.skeleton().forward).parameters
            self._signature_columns: Any = [*taken, "label", "label_ids", *self.label_names]

    # --- evaluation ------------------------------------------------------------------------------------------

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """As Trainer's; members' outputs are left out unless `member_predictions` asks for them."""
        if ignore_keys is None:
            ignore_keys = getattr(self._wrapped.config, "keys_to_ignore_at_inference", [])
        ignored = list(ignore_keys)
        if not self.member_predictions:
            ignored.append("member_logits")
        return super().prediction_step(model, inputs, prediction_loss_only, ignored)

    def scores(self, dataset: Any = None, *, validation: Any = None) -> Evaluation:
        """Everything that `covey.evaluate` measures, on data that the Trainer can read.

        In language models and token classifiers every position whose label counts is a sample; language models have
        their perplexity too.

        Args:
            dataset: with labels; the Trainer's `eval_dataset` by default.
            validation: more data with labels, for temperatures and conformal sets.
        """
        chosen = self.eval_dataset if dataset is None else dataset
        if chosen is None:
            raise OptionError("there is no data to score: give dataset=, or the Trainer an eval_dataset.")
        if isinstance(chosen, dict):
            raise OptionError(
                f"there are several sets of data, {', '.join(chosen)}: give one of them, such as dataset="
                f"eval_dataset[{next(iter(chosen))!r}]."
            )
        record = answered(
            self._answers(chosen),
            "multilabel" if self._wrapped.loss == "binary" else self.ensemble.task,
            language=self._wrapped.shift_labels,
            ignore_index=self._wrapped.ignore_index,
            validation=None if validation is None else self._answers(validation),
        )
        return score(record, stored=self.ensemble.temperature)

    def _answers(self, dataset: Any) -> Answers:
        """Members' outputs (M, N, ..., C) and labels (N, ...)."""
        before = self.member_predictions, self.compute_metrics, self.preprocess_logits_for_metrics
        self.member_predictions, self.compute_metrics, self.preprocess_logits_for_metrics = True, None, None
        try:
            found = self.predict(dataset)
        finally:
            self.member_predictions, self.compute_metrics, self.preprocess_logits_for_metrics = before
        if found.label_ids is None:
            raise OptionError("the data have no labels to score the answers with.")
        outputs = torch.from_numpy(cast(tuple, found.predictions)[1])  # (N, ..., M, C)
        labels = torch.from_numpy(found.label_ids)
        return outputs.movedim(-2 if outputs.ndim > 2 else -1, 0), self._wrapped.shifted(labels)

    # --- checkpoints -----------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(str(self.args.output_dir if output_dir is None else output_dir))
        save(self.ensemble, folder / FOLDER)
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint) / FOLDER
        networks = networks_of(self.ensemble)
        stored = load_ensemble(folder, network=networks)
        ours = self.ensemble
        if stored.method != ours.method or stored.layout != ours.layout:
            raise StoreError(
                f"{folder} holds {stored.method}; this trainer has {ours.method}. Resume with that one."
            )
        ours.load_state_dict(stored.state_dict())
        # what was measured to be the fastest stays, so that a resumed run gives the same numbers
        ours.runs, ours.measured = stored.runs, stored.measured

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))


def _check(ensemble: Ensemble, args: TrainingArguments | None, options: dict[str, Any]) -> None:
    """Refuse what would not do what it says."""
    if ensemble.method.turns():
        raise OptionError(
            f"{type(ensemble.method).__name__} changes its ensemble at some epochs, which only covey.fit does. Take "
            "covey.fit, or set refine_at=None and decouple_at=None."
        )
    if options.get("model_init") is not None:
        raise OptionError("model_init makes plain networks; give the ensemble as model.")
    if options.get("processing_class") is not None:
        check_tokenizer(ensemble.skeleton(), options["processing_class"])
    if args is None:
        return
    if args.deepspeed or args.fsdp:
        raise OptionError(
            "an ensemble's tensors are not sharded by EnsembleTrainer: leave deepspeed and fsdp off. Several processes "
            "(DistributedDataParallel) work."
        )
    if args.label_names is not None and len(args.label_names) != 1:
        raise OptionError(
            f"an ensemble has one column of labels, and label_names has {len(args.label_names)}: name it alone."
        )
    if args.neftune_noise_alpha is not None:
        raise OptionError(
            "neftune_noise_alpha adds noise to one network's embedding, and an ensemble has its members': leave it out."
        )
    if args.push_to_hub:
        raise OptionError(
            "push_to_hub would store the ensemble as a plain network; call covey.hf.push after training."
        )
