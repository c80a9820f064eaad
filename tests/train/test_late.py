"""Starting late: against training by hand with separate tensors, and against what the papers write down."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import covey
from covey import Machine, Recipe, Schedule, fit
from covey.data import Data, Split
from covey.errors import ConversionError, OptionError
from covey.train import checkpoint
from covey.train.batches import Stream
from covey.train.optimizer import carry
from covey.trainings.late_start import late, widen

QUIET = Machine(accelerator="cpu", progress=False)
NORMS = covey.NormEnsemble(members=3, gamma=1.0)
EXAMPLE = torch.zeros(2, 6)


def blobs(samples=88):
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 6, generator=draw)

    def split(count):
        y = torch.randint(3, (count,), generator=draw)
        return Split(centres[y] + torch.randn(count, 6, generator=draw), y)

    record = {"source": "blobs", "indices_sha256": {"train": str(samples)}}
    return Data(
        split(samples),
        split(30),
        split(30),
        task="classification",
        classes=tuple("abc"),
        shape=(6,),
        record=record,
    )


def network(bias=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=bias), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def recipe(**changes):
    settings = {
        "epochs": 5,
        "batch": 8,
        "lr": 0.1,
        "run": "loop",
        "schedule": Schedule(kind="linear", start=1),
    }
    return Recipe(**{**settings, **changes})


def run(method, *, folder=None, resume=False, net=None, **changes):
    return fit(
        net or network(),
        blobs(),
        recipe(**changes),
        method=method,
        machine=QUIET,
        folder=folder,
        resume=resume,
    )


def by_hand(gamma, start, members=3, late_decay=5e-4):
    """The whole of algorithm 4 of paper 2 in plain torch, with one optimiser for theta and one for each phi_k."""
    data, net, stream = blobs(), network(), Stream(88, 8, seed=0)
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    schedule = Schedule(kind="linear", start=1)
    theta, phi_0 = ["0.weight"], ["1.weight", "1.bias", "3.weight", "3.bias"]
    tensors = {name: nn.Parameter(t.detach().clone()) for name, t in net.named_parameters()}
    u_theta = torch.optim.SGD([tensors[name] for name in theta], **settings)
    u_phi = [torch.optim.SGD([tensors[name] for name in phi_0], **settings)]
    phi = [{name: tensors[name] for name in phi_0}]
    buffers = [{name: b.clone() for name, b in net.named_buffers()}]
    consumed = 0
    while consumed < 5 * stream.per_epoch:
        if consumed >= start * stream.per_epoch and len(phi) == 1:
            phi = [{n: nn.Parameter(t.detach().clone()) for n, t in phi[0].items()} for _ in range(members)]
            buffers = [{n: b.clone() for n, b in buffers[0].items()} for _ in range(members)]
            late = {**settings, "weight_decay": late_decay}
            u_phi = [torch.optim.SGD(list(p.values()), **late) for p in phi]
        for optimizer in [u_theta, *u_phi]:
            optimizer.param_groups[0]["lr"] = schedule.at(consumed / stream.per_epoch, lr=0.1, epochs=5)
        u_theta.zero_grad()
        for k in range(len(phi)):
            u_phi[k].zero_grad()
            _, indices = stream[consumed]
            here = {**{n: tensors[n] for n in theta}, **phi[k], **buffers[k]}
            out = functional_call(net.train(), here, (data.train.inputs[indices],))
            F.cross_entropy(out, data.train.targets[indices]).backward()
            buffers[k] = {n: here[n] for n in buffers[k]}
            u_phi[k].step()
            consumed += 1
        for name in theta:
            tensors[name].grad *= gamma if len(phi) > 1 else 1.0
        u_theta.step()
    return [{**{n: tensors[n] for n in theta}, **phi[k], **buffers[k]} for k in range(len(phi))]


@pytest.mark.parametrize("gamma", [1.0, 1 / 3])
@pytest.mark.parametrize("start", [0, 2, 0.6])
@pytest.mark.parametrize("chunk", [None, 3])
def test_a_run_is_algorithm_four(gamma, start, chunk):
    method = late(covey.NormEnsemble(members=3, gamma=gamma), start)
    found = run(method, member_chunk=chunk).ensemble
    expected = by_hand(gamma, 3 if start == 0.6 else start)
    for k, tensors in enumerate(expected):
        member = {**dict(found.member(k).named_parameters()), **dict(found.member(k).named_buffers())}
        for name, tensor in tensors.items():
            torch.testing.assert_close(
                member[name], tensor, rtol=1e-4, atol=1e-5, msg=f"{name} of member {k}"
            )


def test_the_decay_of_late_weights_acts_from_the_start_on_only():
    """5e-4 K after T0, and 5e-4 before it, when phi_0 is a parameter like any other."""
    found = run(covey.LatePhase(members=3, start=2, decay=60.0, collapse=False)).ensemble
    expected = by_hand(1.0, 2, late_decay=60 * 5e-4)
    everywhere = by_hand(1.0, 0, late_decay=60 * 5e-4)
    for k, tensors in enumerate(expected):
        member = dict(found.member(k).named_parameters())
        for name, tensor in member.items():
            torch.testing.assert_close(tensor, tensors[name], rtol=1e-4, atol=1e-5, msg=f"{name} of {k}")
        assert not torch.allclose(member["3.weight"], everywhere[k]["3.weight"], atol=1e-2)


def test_norms_and_heads_beside_embeddings_decay_as_late_weights_do():
    method = covey.LatePhase(members=3, start=2, decay=7.0, kind="embeddings").late().method
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    for options, factor in ((method, 7.0), (method.before_late_start(), 1.0)):
        ensemble = covey.convert(body, options, example=torch.zeros(2, 1, 4, 4))
        decays = {}
        for part in ensemble.parts.values():
            for group in part.groups():
                decays.update({id(p): group.decay for p in group.parameters})
        own = ensemble.parts["replicated"].phi
        assert {decays[id(own[name])] for name in ("1.weight", "1.bias", "3.weight", "3.bias")} == {factor}
        banks = ensemble.parts["hypernetwork"].named_banks().values()
        assert {decays[id(bank.alpha)] for bank in banks} == {0.0}
        assert {decays[id(bank.theta)] for bank in banks} == {1.0}


def plain_or_economical(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 4, 4, generator=draw), torch.arange(40) % 3
    data = Data(
        Split(x, y), Split(x, y), Split(x, y), task="classification", classes=tuple("abc"), shape=(1, 4, 4)
    )
    return fit(net, data, recipe(epochs=4), method=method, machine=QUIET)


@pytest.mark.parametrize("start", [0, 0.5])
def test_one_member_has_no_late_phase(start):
    """No noise, no head drawn anew, no second phase: the run of the hypernetwork itself."""
    late_one = plain_or_economical(covey.Economical(members=1, start=start, noise=0.5))
    plain = plain_or_economical(covey.Hypernetwork(members=1, budget=None))
    assert {row["phase"] for row in late_one.rows} == {0}
    torch.testing.assert_close(late_one.ensemble.state_dict(), plain.ensemble.state_dict(), rtol=0, atol=0)
    assert [row["loss"] for row in late_one.rows] == [row["loss"] for row in plain.rows]


def test_one_late_phase_member_ends_as_the_network():
    one = run(covey.LatePhase(members=1, noise=0.5)).ensemble
    plain = run(None).ensemble
    assert one.method == covey.Replicate(members=1)
    torch.testing.assert_close(one.member(0).state_dict(), plain.member(0).state_dict())


def test_epochs_are_counted_in_minibatches():
    """Eleven minibatches an epoch, three a step: cycles go on over an epoch's end, and the clock is the same."""
    rows = run(late(NORMS, 2)).rows
    plain = run(None).rows
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    # a step of three minibatches begins up to two before the one at which a plain run closes its epoch
    for ours, theirs in zip(rows, plain, strict=True):
        assert theirs["lr"] <= ours["lr"] <= theirs["lr"] + 2 / 11 * 0.1 / 4


@pytest.mark.parametrize(
    "method",
    [
        covey.Replicate(members=1, where="all"),
        covey.NormEnsemble(members=1),
        covey.BatchEnsemble(members=1, init="normal"),
        covey.MultiHead(members=1, init="copy"),
    ],
)
def test_widened_members_answer_as_the_one_did(method):
    one = covey.convert(network(bias=True), method, example=EXAMPLE).train()
    x = torch.randn(7, 6)
    one(x)  # statistics that are not the initial ones
    many = type(method)(**{**vars(method), "members": 4})
    wide = widen(one, many)
    for ensemble in (one, wide):
        ensemble.run = "loop"
        ensemble.eval()
    assert torch.equal(wide(x), one(x).expand(4, -1, -1))
    assert wide.members == 4
    assert wide.method == many


def test_noise_is_in_units_of_each_tensors_root_mean_square():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(100, 80), nn.BatchNorm1d(80), nn.Linear(80, 30))
    nn.init.normal_(net[1].weight, 5.0, 1.0)
    nn.init.zeros_(net[1].bias)
    one = covey.convert(net, covey.Replicate(members=1), example=torch.zeros(2, 100))
    wide = widen(one, covey.Replicate(members=50), noise=0.3)
    for name, tensor in net.named_parameters():
        rows = torch.stack([dict(wide.member(k).named_parameters())[name] for k in range(50)])
        size = tensor.norm() / tensor.numel() ** 0.5
        noise = (rows - tensor).detach()
        assert noise.std().item() == pytest.approx(0.3 * size.item(), rel=0.05), name
        assert torch.equal(wide.member(3)[1].running_mean, net[1].running_mean)
    assert not torch.equal(wide.member(0)[0].weight, wide.member(1)[0].weight)
    again = widen(one, covey.Replicate(members=50), noise=0.3)
    torch.testing.assert_close(again.state_dict(), wide.state_dict(), rtol=0, atol=0)


def test_the_noise_of_a_layers_embedding_goes_by_its_own_norm():
    """Paper 1: sigma ||e_0|| / sqrt(D) for each layer, though a group's embeddings are one tensor."""
    net = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)), nn.Flatten(), nn.Linear(64, 2))
    method = covey.Hypernetwork(members=1, budget=None)
    one = covey.convert(net, method, example=torch.zeros(2, 4, 4, 4))
    banks = one.parts["hypernetwork"].named_banks()
    label = max(banks, key=lambda name: banks[name].alpha.shape[1])
    alpha = banks[label].alpha
    sizes = 10.0 ** torch.arange(alpha.shape[1])
    assert len(sizes) > 1
    with torch.no_grad():
        alpha.copy_(sizes[:, None].expand(alpha.shape[1:]))
    wide = widen(one, replace(method, members=400), noise=0.3)
    many = wide.parts["hypernetwork"].named_banks()[label].alpha
    torch.testing.assert_close((many - alpha).std((0, 2)), 0.3 * sizes, rtol=0.1, atol=0)


def test_a_restarted_head_is_new_for_each_member():
    one = covey.convert(network(), covey.NormEnsemble(members=1), example=EXAMPLE)
    wide = widen(one, covey.NormEnsemble(members=3), restart="head")
    heads = [wide.member(k)[3].weight for k in range(3)]
    old = network()[3].weight
    assert all(not torch.equal(head, old) for head in heads)
    assert not torch.equal(heads[0], heads[1])
    assert all(head.abs().max() <= 1 / 8**0.5 for head in heads)  # Linear's own range
    assert all(torch.equal(wide.member(k)[1].weight, network()[1].weight) for k in range(3))


def test_theta_keeps_its_optimiser_state_and_members_start_empty():
    net = network()
    old = torch.optim.Adam(net.parameters(), lr=0.01)
    for seed in range(3):
        x = torch.randn(9, 6, generator=torch.Generator().manual_seed(seed))
        net(x).square().sum().backward()
        old.step()
    ensemble = covey.convert(net, covey.NormEnsemble(members=4), example=EXAMPLE)
    new = torch.optim.Adam(ensemble.param_groups(lr=0.01))
    assert carry(net, old, ensemble, new) == ["0.weight"]
    (theta,) = [p for group in ensemble.param_groups(1.0) if not group["members"] for p in group["params"]]
    assert torch.equal(new.state[theta]["exp_avg"], old.state[net[0].weight]["exp_avg"])
    assert new.state[theta]["step"] == 3
    assert len(new.state) == 1


def test_rank_one_carries_the_weights_state_not_the_factors():
    one = covey.convert(network(), covey.BatchEnsemble(members=1, init="ones"), example=EXAMPLE)
    old = torch.optim.SGD(one.param_groups(lr=0.1), momentum=0.9)
    covey.loss(one(torch.randn(9, 6)), torch.arange(9) % 3).backward()
    old.step()
    wide = widen(one, covey.BatchEnsemble(members=3, init="ones"))
    new = torch.optim.SGD(wide.param_groups(lr=0.1), momentum=0.9)
    assert carry(one, old, wide, new) == ["0.weight", "3.weight"]
    theirs, ours = one.parts["rank_one"].theta["0.weight"], wide.parts["rank_one"].theta["0.weight"]
    assert torch.equal(new.state[ours]["momentum_buffer"], old.state[theirs]["momentum_buffer"])


def test_the_collapsed_network_is_plain_and_as_large_as_the_original():
    history = run(late(NORMS, 2, 0.3, collapse=True))
    kept = run(late(NORMS, 2, 0.3))
    assert history.ensemble.members == 1
    assert kept.ensemble.members == 3
    plain = history.ensemble.member(0)
    assert [type(m) for m in plain.modules()] == [type(m) for m in network().modules()]
    assert {n: t.shape for n, t in plain.state_dict().items()} == {
        n: t.shape for n, t in network().state_dict().items()
    }
    torch.testing.assert_close(plain.state_dict(), kept.ensemble.collapse().state_dict())


def test_a_frozen_base_stands_still():
    before = run(None, epochs=2, schedule=Schedule()).ensemble.member(0)
    after = run(late(NORMS, 2, freeze=True), schedule=Schedule()).ensemble
    assert torch.equal(after.member(0)[0].weight, before[0].weight)
    assert not torch.equal(after.member(0)[3].weight, before[3].weight)


def test_gradient_accumulation_without_members():
    """The control: no member tensors, so a step is the sum over three minibatches of one network's gradients."""
    method = late(covey.Replicate(members=3, where=(), gamma=1 / 3), 0, collapse=True)
    found = run(method, optimizer="sgd", momentum=0.0, schedule=Schedule(), epochs=1).ensemble.member(0)
    data, net, stream = blobs(), network(), Stream(88, 8, seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=5e-4)
    for first in range(0, stream.per_epoch, 3):
        optimizer.zero_grad()
        for i in range(first, first + 3):
            _, indices = stream[i]
            (F.cross_entropy(net(data.train.inputs[indices]), data.train.targets[indices]) / 3).backward()
        optimizer.step()
    for name, tensor in net.named_parameters():
        torch.testing.assert_close(dict(found.named_parameters())[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_drawn_member_for_each_minibatch():
    """Twelve steps in all: each minibatch moves one member; members that were never drawn stay as they were."""
    method = late(covey.NormEnsemble(members=40, gamma=0.5), 4, nested=False)
    history = run(method, schedule=Schedule())
    before = run(None, epochs=4, schedule=Schedule()).ensemble.member(0)
    moved = [not torch.equal(history.ensemble.member(k)[3].weight, before[3].weight) for k in range(40)]
    assert 0 < sum(moved) <= 11  # an epoch has eleven minibatches
    assert history.ensemble.method.gamma == 1.0
    assert not torch.equal(history.ensemble.member(0)[0].weight, before[0].weight)


def test_late_weights_of_every_kind_train():
    x = blobs().test.inputs
    kinds = [
        covey.NormEnsemble(members=3),
        covey.Replicate(members=3, where="norms"),
        covey.Replicate(members=3, where="head"),
        covey.Replicate(members=3, where="all"),  # Late IE
        covey.BatchEnsemble(members=3, init="ones"),
    ]
    for kind in kinds:
        ensemble = run(late(kind, 0.6, 0.2)).ensemble
        answer = ensemble.predict(x)
        assert (answer.label == blobs().test.targets).float().mean() > 0.8
        assert answer.mutual_information.mean() > 0
        assert ensemble.collapse()(x).shape == (30, 3)


def _train(folder, resume):
    torch.set_num_threads(1)
    return run(late(NORMS, 2, 0.2, collapse=True), folder=folder, resume=resume, average=3, checkpoint=1)


@pytest.mark.parametrize("moment", ["before", "at", "after"])
def test_stopped_around_the_start_and_resumed_is_bit_identical(tmp_path, monkeypatch, moment):
    whole = _train(tmp_path / "whole", False).ensemble
    stop = {"before": 15, "at": 22, "after": 31}[moment]  # epoch 2 ends after 22 minibatches
    save = checkpoint.save

    def stopping(job, state):
        if state.consumed >= stop and not (moment == "at" and state.phase == 1):
            if moment == "at":
                save(job, state)
            raise KeyboardInterrupt
        return save(job, state)

    monkeypatch.setattr(checkpoint, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path / "stopped", False)
    monkeypatch.setattr(checkpoint, "save", save)
    resumed = _train(tmp_path / "stopped", True)
    assert resumed.resumed is not None
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.ensemble.state_dict()[name], tensor), name


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_killed_at_random_moments_ends_bit_identical(tmp_path):
    if "COVEY_ALONE" not in os.environ:
        # in a process of its own: it forks, which torch allows only where no other thread ever computed gradients
        this = f"{__file__}::test_killed_at_random_moments_ends_bit_identical"
        outer = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")
        environment = {name: value for name, value in os.environ.items() if name not in outer}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", this]
        environment |= {"COVEY_ALONE": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=160, check=False
        )
        assert done.returncode == 0, done.stdout
        return
    seed = int(os.environ.get("COVEY_SEED", time.time_ns() % 10_000))
    print("seed", seed)
    draw = random.Random(seed)
    whole = _train(tmp_path / "whole", False).ensemble.state_dict()
    context = multiprocessing.get_context("fork")
    kills = 0
    for _ in range(40):
        process = context.Process(target=_train, args=(tmp_path / "killed", True))
        process.start()
        process.join(draw.uniform(0.02, 0.2) if kills < 6 else None)
        if process.exitcode is not None:
            assert process.exitcode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
    assert kills
    stored = covey.load(tmp_path / "killed" / "ensemble", network=network()).state_dict()
    for name, tensor in whole.items():
        assert torch.equal(stored[name], tensor), name


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: late(covey.DeepEnsemble()), OptionError, "nothing would be left"),
        (lambda: late("norms"), OptionError, "there is no method 'norms'"),
        (lambda: late(covey.SWAG()), OptionError, "takes a method with options"),
        (lambda: late(covey.Packed()), OptionError, "nothing would be left.*init='slice'"),
        (lambda: late(covey.Masksembles(), collapse=True), OptionError, "means nothing for Masksembles"),
        (lambda: late(NORMS, noise=-1), OptionError, "at least 0"),
        (lambda: run(late(NORMS, 5)), OptionError, "start at epoch 5, and training ends at 5"),
        (
            lambda: run(late(NORMS, 2, restart="0.weight")),
            ConversionError,
            "'0.weight', which all members share",
        ),
        (
            lambda: late(covey.Hypernetwork(members=3, linear=True, budget=9.0), 2),
            OptionError,
            "an ensemble of one cannot be widened",
        ),
    ],
)
def test_what_cannot_start_late_says_why(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (late(NORMS, 2, restart="0.weight"), "'0.weight', which all members share"),
        (late(covey.Replicate(members=3, where=()), 2, freeze=True), "Replicate has none that do"),
        (late(covey.Masksembles(members=3), 2, freeze=True), "Masksembles has none that do"),
    ],
)
def test_what_cannot_start_late_says_so_before_any_work(method, words, tmp_path):
    with pytest.raises(ConversionError, match=words):
        run(method, folder=tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))  # not even the checkpoint before the first step


def test_only_one_member_can_be_widened():
    ensemble = covey.convert(network(), NORMS, example=EXAMPLE)
    with pytest.raises(ConversionError, match="widened from one member"):
        widen(ensemble, covey.NormEnsemble(members=5))
