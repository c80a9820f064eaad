"""A run whose object changes on the way."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from small import blobs, mlp

import covey
from covey import Machine, Recipe, Schedule, fit
from covey.train import Phase
from covey.train.phases import build, single

QUIET = Machine(accelerator="cpu", progress=False)
RECIPE = Recipe(epochs=4, batch=16, lr=0.05, run="loop", schedule=Schedule())


def _ensemble(network, job):
    return build(network.member(0), covey.BatchEnsemble(members=3, init="ones", noise=0.1), job)


@dataclass(frozen=True)
class Two(covey.Training):
    """A network for two epochs, then an ensemble of it, with minibatches of the members' own."""

    seen: list

    def result(self, recipe):
        return covey.BatchEnsemble(members=3)

    def phases(self, recipe):
        return [
            Phase(build=single, end=2),
            Phase(build=_ensemble, end=4, plan="independent", after_epoch=self.note),
        ]

    def note(self, job, state):
        momenta = [values["momentum_buffer"] for values in state.optimizer.state.values()]
        self.seen.append((state.phase, state.consumed, len(momenta)))
        state.keep("snapshot", {"w": state.ensemble.parts["rank_one"].theta["0.weight"]})


def test_the_object_changes_and_the_clock_goes_on():
    two = Two([])
    history = fit(mlp(), blobs(), RECIPE, method=two, machine=QUIET)
    assert [row["phase"] for row in history.rows] == [0, 0, 1, 1]
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4]
    assert history.ensemble.members == 3
    # 6 minibatches an epoch, 3 in a step: epoch 3 ends after 18 of them
    assert [consumed for _, consumed, _ in two.seen] == [18, 24]


def test_shared_tensors_keep_their_momentum_and_members_start_with_none():
    data, at_change = blobs(), {}
    step = torch.optim.SGD.step

    class Watched(Two):
        def phases(self, recipe):
            first, second = super().phases(recipe)
            return [replace(first, after_epoch=self.remember), second]

        def remember(self, job, state):
            at_change["momentum"] = {
                name: state.optimizer.state[p]["momentum_buffer"][0].clone()
                for name, p in state.ensemble.parts["replicated"].phi.items()
            }

        def note(self, job, state):
            pass

    def first_step_after(optimizer, *args, **kwargs):
        groups = optimizer.param_groups
        if len(groups) > 1 and "state" not in at_change:
            at_change["state"] = [
                (g["members"], [copy.deepcopy(dict(optimizer.state.get(p, {}))) for p in g["params"]])
                for g in groups
            ]
        return step(optimizer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", first_step_after)
        fit(mlp(), data, RECIPE, method=Watched([]), machine=QUIET)
    for members, states in at_change["state"]:
        assert all(bool(values) != members for values in states)
    shared = next(states for members, states in at_change["state"] if not members)
    for found, expected in zip(
        shared, (at_change["momentum"][n] for n in ("0.weight", "2.weight")), strict=True
    ):
        assert torch.equal(found["momentum_buffer"], expected)


@pytest.mark.parametrize("stop", [5, 13, 16])
def test_resumed_in_either_phase(tmp_path, stop):
    whole = fit(mlp(), blobs(), RECIPE, method=Two([]), machine=QUIET)
    recipe = replace(RECIPE, checkpoint=1)
    step, count = torch.optim.SGD.step, [0]

    class KilledError(Exception):
        pass

    def dies(optimizer, *args, **kwargs):
        count[0] += 1
        if count[0] == stop:
            raise KilledError
        return step(optimizer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", dies)
        with pytest.raises(KilledError):
            fit(mlp(), blobs(), recipe, method=Two([]), machine=QUIET, folder=tmp_path)
    resumed = fit(mlp(), blobs(), recipe, method=Two([]), machine=QUIET, folder=tmp_path, resume=True)
    assert resumed.resumed is not None
    for name, tensor in whole.ensemble.state_dict().items():
        assert torch.equal(tensor, resumed.ensemble.state_dict()[name]), name
