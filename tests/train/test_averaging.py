"""Averages of weights and re-estimated statistics, against torch's own swa_utils and against the data's moments."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import covey
from covey import Machine, Recipe, Schedule, fit
from covey.data import Data, Split
from covey.errors import OptionError, TrainingError
from covey.train.averaging import Average, refresh_statistics
from covey.train.batches import Stream
from covey.trainings.late_start import late

QUIET = Machine(accelerator="cpu", progress=False)


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(dropout), nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 2),
    )  # fmt: skip


def images(samples=40):
    draw = torch.Generator().manual_seed(0)

    def split(count):
        y = torch.arange(count) % 2
        return Split(torch.randn(count, 1, 8, 8, generator=draw) + y[:, None, None, None], y)

    return Data(
        split(samples), split(16), split(16), task="classification", classes=("a", "b"), shape=(1, 8, 8)
    )


def test_statistics_of_equal_batches_are_torchs():
    x = images().train.inputs
    ours, theirs = network(), network()
    refresh_statistics(ours, x.split(10))
    update_bn(x.split(10), theirs)
    for layer in (1, 5):
        torch.testing.assert_close(ours[layer].running_mean, theirs[layer].running_mean)
        torch.testing.assert_close(ours[layer].running_var, theirs[layer].running_var)


def test_an_uneven_last_batch_counts_by_its_samples():
    """The first layer's mean over 40 samples is exact, whatever the batches; torch's update_bn is not."""
    x = images().train.inputs
    net = network()
    with torch.no_grad():
        exact = net[0](x).mean((0, 2, 3))
    refresh_statistics(net, [x[:30], x[30:38], x[38:]])
    torch.testing.assert_close(net[1].running_mean, exact)
    other = network()
    update_bn([x[:30], x[30:38], x[38:]], other)
    assert not torch.allclose(other[1].running_mean, exact, rtol=1e-3)


@pytest.mark.parametrize("run", ["loop", "batched"])
def test_each_member_gets_its_own_statistics_in_one_pass(run):
    x = images().train.inputs
    ensemble = covey.convert(network(0.5), covey.NormEnsemble(members=3, noise=0.5), example=x[:2])
    ensemble.run = run
    alone = [ensemble.member(k) for k in range(3)]
    ensemble.eval()
    refresh_statistics(ensemble, x.split(16))
    assert not ensemble.training
    assert not ensemble.skeleton().training
    for k, net in enumerate(alone):
        refresh_statistics(net, x.split(16))
        torch.testing.assert_close(ensemble.member(k).state_dict(), {**net.state_dict()})
    assert not torch.equal(ensemble.member(0)[5].running_mean, ensemble.member(1)[5].running_mean)


def test_momentum_modes_and_random_layers_are_left_as_they_were():
    net = network(dropout=0.5).train()
    net[1].momentum, net[5].momentum = 0.3, None
    net[5].eval()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    refresh_statistics(net, images().train.inputs.split(20))
    assert torch.equal(torch.rand(3), expected)  # dropout drew nothing
    assert (net[1].momentum, net[5].momentum) == (0.3, None)
    assert net.training
    assert net[3].training
    assert not net[5].training


def test_without_norms_inputs_are_not_read():
    def never():
        raise AssertionError("read")
        yield

    refresh_statistics(nn.Linear(2, 2), never())


def test_the_average_is_torchs_averaged_model():
    net = network()
    ours, theirs = Average(), AveragedModel(net)
    for seed in range(4):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.normal_()
        ours.update(net)
        theirs.update_parameters(net)
    made = ours.applied(net)
    torch.testing.assert_close(dict(made.named_parameters()), dict(theirs.module.named_parameters()))
    assert not torch.equal(made[0].weight, net[0].weight)


def test_an_average_of_nothing():
    with pytest.raises(TrainingError, match="nothing was averaged yet"):
        Average().applied(network())


def test_a_run_with_an_average_is_swa_by_hand():
    data, net, stream = images(), network(), Stream(40, 8, seed=0)
    recipe = Recipe(epochs=4, batch=8, lr=0.05, schedule=Schedule(), run="loop", average=0.5)
    found = fit(network(), data, recipe, machine=QUIET).ensemble.member(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    average = AveragedModel(net)
    for i in range(4 * stream.per_epoch):
        _, indices = stream[i]
        optimizer.zero_grad()
        F.cross_entropy(net(data.train.inputs[indices]), data.train.targets[indices]).backward()
        optimizer.step()
        if i + 1 in (3 * stream.per_epoch, 4 * stream.per_epoch):
            average.update_parameters(net)
    batches = [data.train.inputs[stream[4 * stream.per_epoch + i][1]] for i in range(stream.per_epoch)]
    update_bn(batches, average.module)
    theirs = average.module.state_dict()
    for name, tensor in found.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=name)


def test_late_phase_weights_are_averaged_then_collapsed():
    recipe = Recipe(epochs=4, batch=8, lr=0.05, run="loop", average=2)
    method = late(covey.NormEnsemble(members=2, gamma=1.0), 1, 0.2)
    kept = fit(network(), images(), recipe, method=method, machine=QUIET).ensemble
    method = late(covey.NormEnsemble(members=2, gamma=1.0), 1, 0.2, collapse=True)
    collapsed = fit(network(), images(), recipe, method=method, machine=QUIET).ensemble
    assert (kept.members, collapsed.members) == (2, 1)
    torch.testing.assert_close(collapsed.member(0).state_dict(), kept.collapse().state_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"average": 9}, "before the end of 4 epochs"),
        ({"average": 2, "keep": "best"}, "ask for one"),
        ({"average": 2, "ema": 0.9}, "ask for one"),
    ],
)
def test_averages_that_cannot_be(options, words):
    with pytest.raises(OptionError, match=words):
        Recipe(epochs=4, **options)


def test_scaling_a_recipe_keeps_the_share():
    assert Recipe(epochs=200, average=160).scaled(0.1).average == pytest.approx(0.8)
