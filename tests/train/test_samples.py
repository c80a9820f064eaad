"""Labels that are no classes, labels that do not count, and inputs that are not finite."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small import blobs, line, mlp

import covey
from covey import Machine, Recipe, fit
from covey.data import Augment, Split
from covey.errors import DataError, OptionError, TrainingError
from covey.losses import loss, member_losses

QUIET = Machine(accelerator="cpu", progress=False)
SHORT = Recipe(epochs=1, batch=16, lr=0.1, run="loop")


def with_label(data, part, row, value):
    split = getattr(data, part)
    targets = split.targets.clone()
    targets[row] = value
    return replace(data, **{part: Split(split.inputs, targets)})


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("value", [3, -1, -100, 10**6])
def test_a_label_that_is_no_class_is_an_error_before_training(part, value):
    data = with_label(blobs(), part, 7, value)
    words = rf"{'training' if part == 'train' else part} labels .* the first is {value} in row 7, .* 0 to 2\."
    with pytest.raises(DataError, match=words):
        fit(mlp(), data, SHORT, machine=QUIET)


@pytest.mark.parametrize("method", [None, covey.BatchEnsemble(members=2)])
@pytest.mark.parametrize("changes", [{}, {"smoothing": 0.1}, {"loss": "binary"}])
def test_ignored_samples_might_as_well_be_away(method, changes):
    """One step on 16 samples of which 6 are ignored is one step on the other 10."""
    data = blobs(samples=16)
    keep = torch.arange(16) >= 6
    marked = with_label(data, "train", ~keep, -100)
    marked = with_label(marked, "validation", torch.arange(30) < 4, -100)
    fewer = replace(
        data,
        train=Split(data.train.inputs[keep], data.train.targets[keep]),
        validation=Split(data.validation.inputs[4:], data.validation.targets[4:]),
    )
    recipe = replace(SHORT, **changes)
    one = fit(mlp(), marked, replace(recipe, ignore_index=-100), method=method, machine=QUIET)
    two = fit(mlp(), fewer, recipe, method=method, machine=QUIET)
    for name, tensor in one.ensemble.state_dict().items():
        torch.testing.assert_close(tensor, two.ensemble.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)
    assert one.last["accuracy"] == pytest.approx(two.last["accuracy"])
    assert one.last["nll"] == pytest.approx(two.last["nll"], rel=1e-5)


def test_ignoring_everything_and_what_cannot_be_ignored():
    data = blobs()
    with pytest.raises(DataError, match="all training labels are -100"):
        fit(
            mlp(),
            with_label(data, "train", slice(None), -100),
            replace(SHORT, ignore_index=-100),
            machine=QUIET,
        )
    with pytest.raises(OptionError, match="the data are for regression"):
        fit(mlp(1, 1), line(), replace(SHORT, ignore_index=0), machine=QUIET)
    with pytest.raises(OptionError, match="mixup and cutmix make probabilities"):
        fit(mlp(), data, replace(SHORT, ignore_index=-100, augment=Augment(mixup=0.2)), machine=QUIET)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), shape=st.sampled_from([(), (4,), (3, 5)]), own=st.booleans())
def test_losses_are_means_over_what_counts(seed, shape, own):
    generator = torch.Generator().manual_seed(seed)
    members, batch, classes = 2, 6, 3
    axes = (classes, *shape) if len(shape) == 2 else (*shape, classes)
    outputs = torch.randn(members, batch, *axes, generator=generator)
    lead = (members, batch) if own else (batch,)
    targets = torch.randint(-1, classes, (*lead, *shape), generator=generator)
    found = member_losses(outputs, targets, ignore_index=-1)
    for k in range(members):
        logits = outputs[k].movedim(1, -1) if len(shape) == 2 else outputs[k]
        labels = targets[k] if own else targets
        expected = F.cross_entropy(logits.reshape(-1, classes), labels.flatten(), ignore_index=-1)
        torch.testing.assert_close(found[k], expected if (labels >= 0).any() else torch.zeros(()))


def test_a_member_without_samples_that_count_has_loss_and_gradient_zero():
    outputs = torch.randn(2, 3, 4, requires_grad=True)
    targets = torch.tensor([[1, 2, 0], [-100, -100, -100]])
    found = member_losses(outputs, targets, ignore_index=-100)
    assert found[1] == 0
    found.sum().backward()
    assert not outputs.grad[1].any()
    assert outputs.grad[0].any()


def test_without_ignore_index_no_label_is_ignored():
    with pytest.raises(DataError, match="labels go from -100 to 0, and the network has 3 outputs"):
        loss(torch.zeros(1, 2, 3), torch.tensor([0, -100]))
    ensemble = covey.convert(mlp(), covey.BatchEnsemble(members=2), example=torch.randn(2, 6))
    inputs, targets = torch.randn(4, 6), torch.tensor([0, -100, 2, 1])
    kept = targets >= 0
    torch.testing.assert_close(
        ensemble.loss(inputs, targets, ignore_index=-100), ensemble.loss(inputs[kept], targets[kept])
    )


def spoiled(value, row=7, part="inputs", data=None):
    data = data or blobs()
    inputs, targets = data.train.inputs.clone(), data.train.targets.clone()
    (inputs if part == "inputs" else targets)[row] = value
    return replace(data, train=Split(inputs, targets))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_blamed_and_not_the_learning_rate(value):
    with pytest.raises(
        TrainingError, match=r"the inputs of row 7 of the training data are NaN or infinite"
    ) as caught:
        fit(mlp(), spoiled(value), SHORT, method=covey.BatchEnsemble(members=2), machine=QUIET)
    assert "learning rate" not in str(caught.value)
    with pytest.raises(TrainingError, match=r"rows 1, 2, 3, 4, 5 and 84 more"):
        fit(mlp(), spoiled(value, slice(1, None)), replace(SHORT, batch=90), machine=QUIET)


def test_a_partner_in_mixup_is_blamed_too():
    data = spoiled(math.nan)
    with pytest.raises(TrainingError, match="the inputs of row 7"):
        fit(mlp(), data, replace(SHORT, epochs=3, batch=4, augment=Augment(mixup=1.0)), machine=QUIET)


def test_targets_that_are_not_finite_and_inputs_that_are_too_large():
    with pytest.raises(TrainingError, match=r"the targets of row 7 of the training data are NaN"):
        fit(mlp(1, 1), spoiled(math.nan, part="targets", data=line()), SHORT, machine=QUIET)
    with pytest.raises(TrainingError, match=r"the inputs of row 7 of the training data reach 3e\+38"):
        fit(mlp(1, 1), spoiled(3e38, data=line()), SHORT, machine=QUIET)


def test_validation_samples_that_are_not_finite():
    data = blobs()
    inputs = data.validation.inputs.clone()
    inputs[3, 0] = math.nan
    data = replace(data, validation=Split(inputs, data.validation.targets))
    with pytest.raises(
        TrainingError, match=r"after epoch 1 are not finite: the inputs of row 3 of the validation data"
    ):
        fit(mlp(), data, SHORT, machine=QUIET)


def ensemble_of(task="classification", outputs=3):
    network = mlp(6, outputs)
    with torch.no_grad():
        network[2].weight *= 100
    return covey.convert(network, covey.BatchEnsemble(members=2), example=torch.randn(2, 6), task=task)


@pytest.mark.parametrize(("task", "outputs"), [("classification", 3), ("regression", 1), ("gaussian", 2)])
@pytest.mark.parametrize(("value", "reason"), [(math.nan, "hold NaN"), (3e38, "inputs are finite")])
def test_a_prediction_that_is_not_finite_is_an_error_that_names_the_rows(task, outputs, value, reason):
    ensemble, inputs = ensemble_of(task, outputs), torch.randn(5, 6)
    inputs[[1, 4]] = value
    with pytest.raises(DataError, match=rf"2 samples of 5, in row 1, 4: .*{reason}.*check=False"):
        ensemble.predict(inputs)
    answer = ensemble.predict(inputs, check=False)
    number = answer.max_prob if task == "classification" else answer.std.flatten()
    assert number.isfinite().tolist() == [True, False, True, True, False]


def test_a_class_that_is_ruled_out_is_no_error():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x).masked_fill(torch.tensor([False, True, False]), -math.inf)

    ensemble = covey.convert(Masked(), covey.BatchEnsemble(members=2), example=torch.randn(2, 6))
    probs = ensemble.predict(torch.randn(4, 6)).probs
    assert probs.isfinite().all()
    assert not probs[:, 1].any()


def test_predict_compiles_without_a_break():
    ensemble, inputs = ensemble_of().eval(), torch.randn(4, 6)
    ensemble.run = "loop"

    def probs(x):
        return ensemble.predict(x).probs

    compiled = torch.compile(probs, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs), probs(inputs))
