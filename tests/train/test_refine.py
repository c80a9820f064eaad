"""SuperWeights in a run: refined and decoupled by itself, and resumed with the clusters it had."""

import pytest
import torch
from small import images
from torch import nn

import covey
from covey import Machine, Recipe, Schedule, SuperWeights, fit
from covey.errors import OptionError
from covey.train import checkpoint
from covey.train.optimizer import make_optimizer

QUIET = Machine(accelerator="cpu", progress=False)
METHOD = SuperWeights(budget=3.0, refine_at=2, decouple_at=1, tau=0.3, beta=0.95)


def network(width, blocks):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, width, 3, padding=1)]
    for _ in range(blocks):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))


def ensemble(method=METHOD):
    return covey.convert([network(6, 3), network(4, 2)], method, example=torch.zeros(2, 1, 8, 8))


def run(*, folder=None, resume=False, method=METHOD, **changes):
    # how members run is chosen by measurement, and so not the same in two runs that are compared bit by bit
    settings = {
        "epochs": 5,
        "batch": 8,
        "lr": 0.05,
        "run": "loop",
        "schedule": Schedule(kind="linear", start=0),
    }
    recipe = Recipe(**{**settings, **changes})
    return fit(ensemble(method), images(), recipe, machine=QUIET, folder=folder, resume=resume)


def test_a_run_refines_starts_again_and_decouples():
    first = ensemble()
    plan = first.layout.facts
    history = run()
    trained = history.ensemble
    found = trained.layout.facts
    assert plan["exploring"]
    assert not found["exploring"]
    assert len(found["clusters"]) > len(plan["clusters"])
    assert max(bank["alpha"][-2] for bank in found["banks"].values()) > 1  # some rows were told apart
    assert [row["phase"] for row in history.rows] == [0, 0, 1, 2, 2]
    rates = [
        row["lr"] for row in history.rows
    ]  # of each epoch's last minibatch, falling anew from epoch 2 on
    assert rates[0] == rates[1] == 0.05
    assert rates[1] > rates[3] > rates[4]
    assert rates[2] == pytest.approx(0.05 * (1 - (4 / 5) / 3), rel=0.05)
    numbers = sum(p.numel() for p in trained.parameters())
    assert numbers == trained.coverage.total
    mean = sum(p.numel() for net in (network(6, 3), network(4, 2)) for p in net.parameters()) / 2
    assert numbers <= 3 * mean


def test_one_network_is_converted_and_refined_too():
    recipe = Recipe(epochs=3, batch=8, lr=0.05)
    method = SuperWeights(members=2, budget=3.0, refine_at=1, tau=0.3)
    trained = fit(network(6, 3), images(), recipe, method=method, machine=QUIET).ensemble
    assert not trained.layout.facts["exploring"]
    again = fit(
        trained, images(), recipe, machine=QUIET
    ).ensemble  # an ensemble that was refined is not refined again
    assert again.layout == trained.layout


@pytest.mark.parametrize("stop", [7, 10, 12, 15, 21])  # epochs end after 5, 10, 15, ... minibatches
def test_stopped_in_any_phase_and_resumed_is_bit_identical(tmp_path, monkeypatch, stop):
    whole = run(folder=tmp_path / "whole", checkpoint=1).ensemble
    save = checkpoint.save

    def stopping(job, state):
        path = save(job, state)
        if state.consumed >= stop:
            raise KeyboardInterrupt
        return path

    monkeypatch.setattr(checkpoint, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path / "stopped", checkpoint=1)
    monkeypatch.setattr(checkpoint, "save", save)
    resumed = run(folder=tmp_path / "stopped", resume=True, checkpoint=1)
    assert resumed.resumed is not None
    assert resumed.ensemble.layout == whole.layout
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.ensemble.state_dict()[name], tensor), name


def test_decoupling_keeps_the_optimiser_state_of_templates():
    made = ensemble(SuperWeights(budget=3.0, decouple_at=1, beta=1.0))
    optimiser = make_optimizer(made, Recipe())
    x, y = images().train.inputs[:8].float(), images().train.targets[:8]
    covey.loss(made.train()(x), y).backward()
    optimiser.step()
    before = dict(made.named_parameters())
    assert made.method.after_epoch(made, 1, [(x, y)]) == "changed"
    kept = [name for name, p in made.named_parameters() if before.get(name) is p]
    new = [name for name, p in made.named_parameters() if before.get(name) is not p]
    assert all(name.endswith("theta") or "own" in name or "alpha" in name for name in kept)
    assert new
    assert all(name.endswith("alpha") for name in new)


def test_too_few_epochs_are_an_error():
    with pytest.raises(OptionError, match=r"after 3 epochs, and training ends at 3"):
        run(epochs=3)


def test_universally_slimmable_draws_widths_and_estimates_statistics_again():
    method = covey.Slimmable(norms="shared", widths=2)
    networks = [network(width, 2) for width in (4, 8, 6)]
    made = covey.convert(networks, method, example=torch.zeros(2, 1, 8, 8))
    trained = fit(made, images(), Recipe(epochs=2, batch=8, lr=0.05), machine=QUIET).ensemble
    inputs = images().prepare(images().train.inputs)
    for k in range(
        3
    ):  # the middle width was never drawn, its statistics are those of the training set all the same
        plain = trained.member(k)
        mean = plain[0](inputs).mean((0, 2, 3))
        torch.testing.assert_close(plain[1].running_mean, mean, atol=1e-4, rtol=1e-3)
