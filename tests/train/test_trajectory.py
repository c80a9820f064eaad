"""SWAG, snapshots and FGE: against their formulas, and as ordinary ensembles."""

import math

import pytest
import torch
from torch import nn

import covey
from covey import Machine, Recipe, Schedule, fit
from covey.data import Data, Split
from covey.errors import ConversionError, OptionError, TrainingError
from covey.trainings import FGE, SWAG, Snapshot, gather
from covey.trainings.swag import Gaussian

QUIET = Machine(accelerator="cpu", progress=False)
STEADY = Recipe(epochs=6, batch=8, lr=0.05, schedule=Schedule(), run="loop")


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def blobs(samples=40):
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 6, generator=draw)

    def split(count):
        y = torch.randint(3, (count,), generator=draw)
        return Split(centres[y] + torch.randn(count, 6, generator=draw), y)

    return Data(split(samples), split(20), split(20), task="classification", classes=tuple("abc"), shape=(6,))


def run(method, recipe=STEADY):
    return fit(network(), blobs(), recipe, method=method, machine=QUIET).ensemble


def after(epochs):
    """The network after so many epochs of the same steady training."""
    from dataclasses import replace

    return fit(network(), blobs(), replace(STEADY, epochs=epochs), machine=QUIET).ensemble.member(0)


def test_gathered_networks_answer_as_they_did_apart(tmp_path):
    networks = [network(seed) for seed in range(3)]
    x = torch.randn(5, 6)
    for net in networks:
        net(torch.randn(20, 6))  # statistics of its own
        net.eval()
    ensemble = gather(networks)
    ensemble.eval()
    ensemble.run = "loop"
    expected = torch.stack([net(x) for net in networks])
    torch.testing.assert_close(ensemble(x), expected, rtol=0, atol=0)
    covey.save(ensemble, tmp_path)
    loaded = covey.load(tmp_path, network=network())
    assert isinstance(loaded.method, covey.DeepEnsemble)
    torch.testing.assert_close(loaded(x), expected, rtol=0, atol=0)


def test_gather_refuses_networks_of_another_shape():
    odd = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(
        ConversionError, match=r"'0.weight' is \(8, 6\) in the first and \(9, 6\) in number 1"
    ):
        gather([network(), odd])
    with pytest.raises(OptionError, match="at least one network"):
        gather([])


def test_the_gaussian_has_the_covariance_of_the_formula():
    """Draws against scale (diag + D D^T / (n - 1)), with D and the diagonal computed here from the snapshots."""
    net = nn.Linear(3, 2)
    draw = torch.Generator().manual_seed(0)
    snapshots = torch.randn(7, 8, generator=draw, dtype=torch.float64).mul(torch.arange(1, 9)).float()
    gaussian = Gaussian(rank=4)
    for values in snapshots:
        nn.utils.vector_to_parameters(values, net.parameters())
        gaussian.update(net)
    means = [snapshots[: i + 1].mean(0) for i in range(7)]
    deviations = torch.stack([snapshots[i] - means[i] for i in range(7)])[-4:]
    diagonal = (snapshots.square().mean(0) - snapshots.mean(0).square()).diag()
    expected = 0.5 * (diagonal + deviations.T @ deviations / 3)
    torch.manual_seed(1)
    draws = torch.stack(
        [nn.utils.parameters_to_vector(gaussian.draw(gaussian.mean, 0.5).values()) for _ in range(5_000)]
    )
    scale = expected.diag().sqrt()
    torch.testing.assert_close(draws.mean(0) / scale, snapshots.mean(0) / scale, rtol=0, atol=0.06)
    off = (draws.T.cov() - expected) / torch.outer(scale, scale)
    assert off.abs().max() < 0.08


def test_the_gaussian_goes_on_from_its_tensors():
    net, whole = network(), Gaussian(rank=3)
    for seed in range(6):
        if seed == 3:
            halved = Gaussian(3, whole.count, whole.tensors())
        net = network(seed)
        whole.update(net)
        if seed >= 3:
            halved.update(net)
    assert halved.count == 6
    torch.testing.assert_close(halved.tensors(), whole.tensors(), rtol=0, atol=0)
    assert len(whole.deviations["0.weight"]) == 3


def test_swag_in_a_run(tmp_path):
    ensemble = run(SWAG(members=5, start=3, rank=2))
    assert ensemble.members == 5
    x = blobs().test.inputs
    answer = ensemble.predict(x)
    assert (answer.label == blobs().test.targets).float().mean() > 0.8
    assert answer.mutual_information.mean() > 0
    # statistics belong to the drawn weights: the first norm sees a linear map of the training inputs
    for k in range(5):
        member = ensemble.member(k)
        torch.testing.assert_close(
            member[1].running_mean, member[0](blobs().train.inputs).mean(0), rtol=1e-4, atol=1e-5
        )
    covey.save(ensemble, tmp_path)
    again = covey.load(tmp_path, network=network()).predict(x)
    assert torch.equal(again.probs, answer.probs)
    torch.testing.assert_close(run(SWAG(members=5, start=3, rank=2)).state_dict(), ensemble.state_dict())


def test_swag_uses_the_snapshots_after_its_start():
    """With no covariance every draw is the mean of the weights after epochs 4, 5 and 6."""
    member = run(SWAG(members=1, start=3, scale=0.0)).member(0)
    mean = torch.stack([after(epoch)[0].weight for epoch in (4, 5, 6)]).mean(0)
    torch.testing.assert_close(member[0].weight, mean, rtol=1e-5, atol=1e-6)


def test_snapshots_are_the_weights_at_equal_distances():
    ensemble = run(Snapshot(members=2, start=2, cycles=False))
    assert isinstance(ensemble.method, covey.DeepEnsemble)
    for k, epoch in enumerate((4, 6)):
        torch.testing.assert_close(ensemble.member(k).state_dict(), after(epoch).state_dict())


def mean_of(epochs):
    """The mean of the weights after these epochs of the same steady training, by name."""
    found = [dict(after(epoch).named_parameters()) for epoch in epochs]
    return {name: torch.stack([each[name] for each in found]).mean(0) for name in found[0]}


def test_snapshots_of_averaged_sgd_are_the_averages_so_far():
    """Averaging from epoch 3 on: the snapshots after 2, 4 and 6 are raw, and means over epochs 4 and 4, 5, 6."""
    from dataclasses import replace

    ensemble = run(Snapshot(members=3, cycles=False), replace(STEADY, average=3.0))
    torch.testing.assert_close(ensemble.member(0).state_dict(), after(2).state_dict())  # no average yet
    x = blobs().train.inputs
    for k, epochs in ((1, (4,)), (2, (4, 5, 6))):
        member = ensemble.member(k)
        torch.testing.assert_close(dict(member.named_parameters()), mean_of(epochs), rtol=1e-5, atol=1e-6)
        # statistics belong to the averaged weights
        torch.testing.assert_close(member[1].running_mean, member[0](x).mean(0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ensemble.member(2)[0].weight, after(6)[0].weight)


def test_fge_with_averaging_keeps_the_averages_too():
    from dataclasses import replace

    method, steady = FGE(start=2, cycle=2, high=0.05, low=0.05), replace(STEADY, average=1.0)
    ensemble = run(method, steady)
    for k, last in enumerate((3, 5)):  # the minima, at a learning rate that never changes
        expected = mean_of(range(2, last + 1))
        found = dict(ensemble.member(k).named_parameters())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_snapshot_cycles_are_cosines():
    """lr(t) = lr0 / 2 (cos(pi t_cycle / T_cycle) + 1), with five minibatches an epoch and cycles of two epochs."""
    rows = fit(network(), blobs(), STEADY, method=Snapshot(members=3), machine=QUIET).rows
    expected = [
        0.05 / 2 * (math.cos(math.pi * t / 10) + 1) for t in (4, 9)
    ] * 3  # the last step of each epoch
    assert [row["lr"] for row in rows] == pytest.approx(expected)


def test_fge_keeps_the_minima_of_a_triangle():
    method = FGE(start=2, cycle=2, high=0.04, low=0.01)
    history = fit(network(), blobs(), STEADY, method=method, machine=QUIET)
    assert history.ensemble.members == 2  # the minima after epochs 3 and 5
    # the last step of an epoch: steady, then 1/5 epoch before the minimum, 1/5 before the maximum, ...
    low, high = 0.01 + 0.2 * 0.03, 0.04 - 0.2 * 0.03
    assert [row["lr"] for row in history.rows] == pytest.approx([0.05, 0.05, low, high, low, high])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: run(SWAG(start=5)), OptionError, "two epochs or more to collect .* start at epoch 5 of 6"),
        (lambda: run(SWAG(start=50)), OptionError, "would start at epoch 50 of 6. Start it earlier"),
        (lambda: Gaussian().draw([]), TrainingError, "at least two snapshots"),
        (lambda: Gaussian(rank=1), OptionError, "at least 2; got 1"),
        (lambda: run(Snapshot(members=9)), OptionError, "more than one an epoch"),
        (lambda: run(Snapshot(members=0)), OptionError, "at least 1; got 0"),
        (lambda: run(FGE(cycle=3)), OptionError, "even number of epochs"),
        (lambda: run(FGE(low=0.1)), OptionError, "not above high"),
        (lambda: run(FGE(start=6)), OptionError, "FGE starts at epoch 6 of 6, and a cycle of 2 epochs"),
        (lambda: run(SWAG(start=2), Recipe(epochs=6, keep="best")), OptionError, "best epoch"),
    ],
)
def test_what_cannot_work_says_why(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_swag_resumed_after_collection_began_draws_the_same_members(tmp_path, monkeypatch):
    """A checkpoint does not keep the order of its tensors; the draws go by the network's."""
    from small import blobs, mlp

    from covey.train import checkpoint

    recipe = Recipe(epochs=5, batch=16, lr=0.05, run="loop")
    method = SWAG(members=4, start=2, rank=3)
    quiet = covey.Machine(accelerator="cpu", progress=False)
    whole = covey.fit(
        mlp(norm=True), blobs(), recipe, method=method, machine=quiet, folder=tmp_path / "whole"
    )
    save = checkpoint.save

    def stopping(job, state):
        path = save(job, state)
        if state.consumed >= 4 * job.stream.per_epoch:
            raise KeyboardInterrupt
        return path

    monkeypatch.setattr(checkpoint, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        covey.fit(mlp(norm=True), blobs(), recipe, method=method, machine=quiet, folder=tmp_path / "stopped")
    monkeypatch.setattr(checkpoint, "save", save)
    resumed = covey.fit(
        mlp(norm=True),
        blobs(),
        recipe,
        method=method,
        machine=quiet,
        folder=tmp_path / "stopped",
        resume=True,
    )
    assert resumed.resumed is not None
    for name, tensor in whole.ensemble.state_dict().items():
        assert torch.equal(resumed.ensemble.state_dict()[name], tensor), name
