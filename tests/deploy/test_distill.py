"""A student learns from an ensemble."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import covey
from covey.deploy.distilling import _gaussian_divergence
from covey.errors import DataError, EvaluationError, OptionError

QUIET = covey.Machine(accelerator="cpu", progress=False)
RECIPE = covey.Recipe(epochs=40, batch=32, lr=0.2, decay=0.0)


def network(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, outputs))


def samples(count: int = 256) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


@pytest.fixture(scope="module")
def teacher() -> covey.Ensemble:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    ens = covey.convert(net, covey.DeepEnsemble(members=3), example=samples(2)[0])
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.mul_(2.0)
    return ens.eval()


def divergence(probs: Tensor, answer: Tensor) -> float:
    return float((probs * (probs.log() - answer.log())).sum(-1).mean())


def test_one_network_learns_the_average(teacher: covey.Ensemble) -> None:
    x, noise = samples()  # labels are noise: all there is to learn comes from the teacher
    history = covey.distill(teacher, network(), (x, noise), RECIPE, machine=QUIET)
    goal = teacher.predict(x).probs
    before = divergence(goal, network()(x).softmax(-1).detach())
    after = divergence(goal, history.ensemble.predict(x).probs)
    assert history.ensemble.members == 1
    assert after < 0.1 * before
    assert after < 0.02


def test_hydra_keeps_the_disagreement(teacher: covey.Ensemble) -> None:
    x, noise = samples()
    student = covey.MultiHead(members=3)
    each = covey.distill(teacher, network(), (x, noise), RECIPE, method=student, machine=QUIET).ensemble
    goals = teacher(x).softmax(-1)
    found = each.eval()(x).softmax(-1).detach()
    for k in range(3):
        own = divergence(goals[k].detach(), found[k])
        others = [divergence(goals[j].detach(), found[k]) for j in range(3) if j != k]
        assert own < 0.3 * min(others)
    ours, theirs = each.predict(x).mutual_information, teacher.predict(x).mutual_information
    assert torch.corrcoef(torch.stack([ours, theirs]))[0, 1] > 0.8


def test_chunks_of_members_learn_from_their_own_teachers(teacher: covey.Ensemble) -> None:
    x, noise = samples(64)
    short = replace(RECIPE, epochs=2)
    method = covey.MultiHead(members=3)
    found = []
    for chunk in (None, 1):
        recipe = replace(short, member_chunk=chunk)
        found.append(
            covey.distill(teacher, network(), (x, noise), recipe, method=method, machine=QUIET).ensemble
        )
    for ours, theirs in zip(*(ens.parameters() for ens in found), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_data_set_that_is_read_by_number_teaches_the_same(teacher: covey.Ensemble) -> None:
    x, noise = samples(64)
    short = replace(RECIPE, epochs=2)
    held = covey.distill(teacher, network(), (x, noise), short, machine=QUIET).ensemble
    read = covey.distill(
        teacher,
        network(),
        covey.data.adapt(TensorDataset(x, noise), classes=["a", "b", "c"]),
        short,
        machine=QUIET,
    ).ensemble
    for ours, theirs in zip(held.parameters(), read.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_regressions_learn_means_and_variances() -> None:
    x, _ = samples()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    ens = covey.convert(net, covey.DeepEnsemble(members=3), example=x, task="gaussian").eval()
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.mul_(2.0)  # so that there is something to learn
    y = torch.randn(len(x), generator=torch.Generator().manual_seed(3))
    recipe = replace(RECIPE, lr=0.1, epochs=60)
    student = covey.distill(ens, network(2), (x, y), recipe, machine=QUIET).ensemble
    goal, found = ens.predict(x), student.predict(x)
    assert float((goal.mean - found.mean).square().mean()) < 0.2 * float(goal.mean.var())
    torch.testing.assert_close(goal.variance.mean(), found.variance.mean(), rtol=0.1, atol=0.0)


def test_the_divergence_of_gaussians_is_torchs() -> None:
    outputs = torch.randn(5, 2)
    mean, variance = covey.combine.gaussian(outputs)
    goal = torch.rand(5, 2) + 0.1
    teacher = torch.distributions.Normal(goal[:, :1], goal[:, 1:].sqrt())
    student = torch.distributions.Normal(mean, variance.sqrt())
    expected = torch.distributions.kl_divergence(teacher, student)[:, 0]
    torch.testing.assert_close(_gaussian_divergence(1.0)(outputs, goal), expected)


@pytest.mark.parametrize(
    ("data", "options", "error", "said"),
    [
        (lambda x, y: DataLoader(TensorDataset(x, y), batch_size=8), {}, DataError, "must have numbers"),
        (lambda x, y: (x, y.float() + 0.5), {}, OptionError, "the data are for regression"),
        (lambda x, y: (x, y), {"temperature": 0.0}, OptionError, "temperature"),
        (lambda x, y: (x, y), {"truth": 2.0}, OptionError, "truth"),
        (lambda x, y: (x, y + 3), {"truth": 0.5}, DataError, "the teacher knows the classes 0 to 2"),
    ],
)
def test_mistakes_are_told(
    teacher: covey.Ensemble, data: object, options: dict[str, float], error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        covey.distill(teacher, network(), data(*samples(32)), RECIPE, machine=QUIET, **options)  # type: ignore


def test_a_student_with_other_outputs(teacher: covey.Ensemble) -> None:
    with pytest.raises(OptionError, match="the student gives 5 outputs per sample and the teacher 3"):
        covey.distill(teacher, network(5), samples(32), RECIPE, machine=QUIET)


@pytest.mark.parametrize(
    ("task", "right", "wrong"), [("regression", 1, 2), ("gaussian", 2, 1), ("gaussian", 2, 4)]
)
def test_a_student_of_numbers_with_other_outputs(task: Any, right: int, wrong: int) -> None:
    x, _ = samples(32)
    ens = covey.convert(network(right), covey.DeepEnsemble(members=2), example=x, task=task)
    with pytest.raises(OptionError, match=f"gives {wrong} outputs per sample and the teacher {right}"):
        covey.distill(ens, network(wrong), (x, x[:, :1]), RECIPE, machine=QUIET)


def test_a_teacher_that_is_no_ensemble() -> None:
    with pytest.raises(OptionError, match="distill takes an ensemble"):
        covey.distill(network(), network(), samples(32), RECIPE, machine=QUIET)


def test_a_teacher_that_cannot_answer(teacher: covey.Ensemble) -> None:
    x, y = samples(32)
    with pytest.raises(DataError, match="does not take the data's inputs"):
        covey.distill(teacher, network(), (x[:, :2], y), RECIPE, machine=QUIET)
    broken = copy.deepcopy(teacher)
    with torch.no_grad():
        next(iter(broken.parameters())).fill_(torch.nan)
    with pytest.raises(EvaluationError, match="the teacher's answers to the training data are NaN"):
        covey.distill(broken, network(), (x, y), RECIPE, machine=QUIET)
