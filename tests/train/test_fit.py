import csv
import json
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small import blobs, convnet, images, line, mlp
from torch import nn

import covey
from covey import Machine, Recipe, Schedule, fit
from covey.data import Augment, Split
from covey.errors import DataError, OptionError, StoreError, TrainingError
from covey.train.batches import Stream

QUIET = Machine(accelerator="cpu", progress=False)
LOOP = Recipe(epochs=2, batch=16, lr=0.1, run="loop")


def tensors(ensemble):
    return {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}


def assert_near(a, b, tolerance=1e-5):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=name)


def test_a_network_alone_is_trained_as_a_loop_by_hand_would():
    data, network = blobs(), mlp()
    by_hand = mlp()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    stream = Stream(len(data.train), 16, seed=0)
    for i in range(2 * stream.per_epoch):
        _, indices = stream[i]
        optimizer.param_groups[0]["lr"] = Schedule(kind="cosine").at(i / stream.per_epoch, lr=0.1, epochs=2)
        optimizer.zero_grad()
        F.cross_entropy(by_hand(data.train.inputs[indices]), data.train.targets[indices]).backward()
        optimizer.step()
    trained = fit(network, data, LOOP, machine=QUIET).ensemble.member(0)
    assert_near(dict(trained.named_parameters()), dict(by_hand.named_parameters()))
    assert_near(dict(network.named_parameters()), dict(mlp().named_parameters()), 0)  # the user's own stays


def test_a_deep_ensemble_is_as_many_networks_trained_alone():
    data = blobs()
    ensemble = covey.convert(mlp(), covey.DeepEnsemble(members=2), example=data.train.inputs[:2])
    apart = [ensemble.member(k) for k in range(2)]
    together = fit(ensemble, data, LOOP, machine=QUIET).ensemble
    for k, network in enumerate(apart):
        alone = fit(network, data, LOOP, machine=QUIET).ensemble
        assert_near(dict(together.member(k).named_parameters()), dict(alone.member(0).named_parameters()))


@pytest.mark.parametrize("plan", ["same", "split", "independent"])
@pytest.mark.parametrize("changes", [{"recipe": {"member_chunk": 1}}, {"machine": {"shards": 3}}])
def test_chunks_and_shards_give_the_same_step(plan, changes):
    """Without BatchNorm, cutting a step into pieces changes nothing but rounding; uneven last batches included."""
    data = blobs(samples=45)
    recipe = replace(LOOP, plan=plan, batch=20)

    def trained(recipe, machine):
        ensemble = covey.convert(mlp(), covey.BatchEnsemble(members=3), example=data.train.inputs[:2])
        return tensors(fit(ensemble, data, recipe, machine=machine).ensemble)

    whole = trained(recipe, QUIET)
    cut = trained(replace(recipe, **changes.get("recipe", {})), replace(QUIET, **changes.get("machine", {})))
    assert_near(whole, cut)


def test_statistics_of_shards_are_their_mean_by_hand():
    data = images(16)
    recipe = Recipe(epochs=1, batch=16, lr=1e-9, run="loop")
    ensemble = covey.convert(convnet(), covey.BatchEnsemble(members=2), example=data.train.inputs[:2])
    members = [ensemble.member(k).train() for k in range(2)]
    _, indices = Stream(16, 16, 0)[0]
    expected = []
    for network in members:
        halves = []
        for half in indices.tensor_split(2):
            copy = convnet()
            copy.load_state_dict(network.state_dict())
            copy.train()(data.train.inputs[half])
            halves.append(copy[4].running_var)
        expected.append(sum(halves) / 2)
    trained = fit(ensemble, data, recipe, machine=replace(QUIET, shards=2)).ensemble
    for k in range(2):
        torch.testing.assert_close(trained.member(k)[4].running_var, expected[k])
        assert trained.member(k)[4].num_batches_tracked == 1


@pytest.mark.parametrize(
    "method",
    [
        covey.MIMO(members=2, repeats=2),
        covey.Masksembles(members=2),
        covey.MultiHead(members=2),
        covey.DeepEnsemble(members=2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_every_method_learns(method):
    recipe = replace(LOOP, epochs=6)
    history = fit(mlp(norm=True), blobs(samples=120), recipe, method=method, machine=QUIET)
    assert history.last["accuracy"] > 0.85
    assert len(history.rows) == 6
    assert history.ended == "all 6 epochs are done"


def test_how_members_answer_is_measured_where_each_learns_from_its_own_samples():
    recipe = replace(LOOP, epochs=1, run="auto")
    trained = fit(mlp(), blobs(), recipe, method=covey.MIMO(members=2, repeats=2), machine=QUIET).ensemble
    assert "eval" in trained.measured


def test_how_members_answer_is_measured_where_a_step_takes_one_draw():
    recipe = replace(LOOP, epochs=1, run="auto")
    method = covey.MCDropout(members=3)
    trained = fit(mlp(dropout=0.5), blobs(), recipe, method=method, machine=QUIET).ensemble
    assert set(trained.measured) == {"train", "eval"}
    assert trained.runs["train"] == "loop"  # numbers have no memory format


def test_members_that_take_turns_to_save_memory_are_measured_in_both_formats(monkeypatch):
    tried = []
    timed = covey.run._Race._timed
    monkeypatch.setattr(
        covey.run._Race, "_timed", lambda race, way: (tried.append(str(way)), timed(race, way))[1]
    )
    torch.manual_seed(0)
    images = covey.data.adapt((torch.randn(32, 1, 8, 8), torch.arange(32) % 3))
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    recipe = replace(LOOP, epochs=1, batch=16, run="auto", member_chunk=1)
    fit(network, images, recipe, method=covey.BatchEnsemble(members=2), machine=QUIET)
    assert {"loop", "loop+channels_last"} <= set(tried)
    assert not any(way.startswith("batched") for way in tried)


def test_dropout_learns_and_answers_with_all_draws():
    history = fit(
        mlp(dropout=0.3), blobs(), replace(LOOP, epochs=6), method=covey.MCDropout(members=4), machine=QUIET
    )
    assert history.last["accuracy"] > 0.8
    assert history.ensemble(torch.zeros(2, 6)).shape == (4, 2, 3)
    assert history.last["disagreement"] > 0


def test_regression_with_and_without_variance():
    point = fit(mlp(1, 1), line(), replace(LOOP, epochs=10), machine=QUIET)
    assert point.last["rmse"] < 0.4
    assert "nll" not in point.last
    gaussian = fit(mlp(1, 2), line(), replace(LOOP, epochs=10, lr=0.02), machine=QUIET)
    assert gaussian.ensemble.task == "gaussian"
    assert gaussian.last["rmse"] < 0.5
    assert gaussian.last["nll"] < 1


def test_next_token_on_text(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"ab" * 2000)
    data = covey.data.load(tmp_path / "text.txt", length=8)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))
    history = fit(
        network, data, replace(LOOP, epochs=4, lr=1.0), method=covey.DeepEnsemble(members=2), machine=QUIET
    )
    assert history.last["accuracy"] == 1.0
    assert history.last["bits"] < 0.5  # b follows a, and a follows b


def test_mixup_and_cutmix_work_with_every_plan():
    for plan in ("same", "split", "independent"):
        recipe = replace(LOOP, plan=plan, epochs=1, augment=Augment(mixup=0.5, cutmix=0.5, flip=True, pad=1))
        history = fit(convnet(), images(), recipe, method=covey.DeepEnsemble(members=2), machine=QUIET)
        assert history.last["loss"] > 0


def test_average_of_weights_by_hand():
    data = blobs()
    seen = []
    recipe = replace(LOOP, epochs=1, ema=0.5)
    ensemble = covey.convert(mlp(), covey.Replicate(members=1), example=data.train.inputs[:2])
    step = torch.optim.SGD.step
    weight = ensemble.parts["replicated"].phi["0.weight"]

    def record(self, *args, **kwargs):
        result = step(self, *args, **kwargs)
        seen.append(weight.detach().clone())
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", record)
        fit(ensemble, data, recipe, machine=QUIET)
    average = seen[0]
    for later in seen[1:]:
        average = 0.5 * average + 0.5 * later
    torch.testing.assert_close(weight.detach(), average)


def test_early_stop_keeps_the_best_epoch():
    data = blobs()
    recipe = replace(LOOP, epochs=30, patience=2, choose="nll", lr=1.0, schedule=Schedule())
    history = fit(mlp(), data, recipe, machine=QUIET)
    scores = history["nll"]
    best = min(range(len(scores)), key=scores.__getitem__)
    assert len(scores) == best + 3 < 30
    assert history.ended == "2 epochs without a better validation score"
    answer = history.ensemble.predict(data.validation.inputs)
    kept = -answer.log_probs.gather(1, data.validation.targets[:, None]).mean()
    assert kept.item() == pytest.approx(scores[best], abs=1e-6)


def test_scores_of_the_last_epoch_by_hand():
    data = blobs(held=31)
    history = fit(mlp(), data, LOOP, method=covey.DeepEnsemble(members=3), machine=QUIET)
    logits = history.ensemble(data.validation.inputs)
    labels = logits.argmax(-1)
    pairs = [(labels[i] != labels[j]).float().mean().item() for i in range(3) for j in range(i)]
    assert history.last["disagreement"] == pytest.approx(sum(pairs) / 3, abs=1e-6)
    mean = logits.softmax(-1).mean(0)
    assert history.last["accuracy"] == pytest.approx(
        (mean.argmax(-1) == data.validation.targets).float().mean().item()
    )
    assert history.last["nll"] == pytest.approx(
        F.nll_loss(mean.log(), data.validation.targets).item(), abs=1e-5
    )


def test_collapsed_members_are_reported():
    with pytest.warns(UserWarning, match="the 2 members have collapsed into one"):
        fit(mlp(), blobs(), replace(LOOP, epochs=1), method=covey.Replicate(members=2), machine=QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(mlp(), blobs(), replace(LOOP, epochs=1), method=covey.DeepEnsemble(members=2), machine=QUIET)


def test_the_global_random_state_is_left_alone():
    network, data = mlp(dropout=0.2), blobs()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fit(network, data, replace(LOOP, epochs=1), machine=QUIET)
    assert torch.equal(before, torch.get_rng_state())


def test_clipping_bounds_the_step():
    recipe = replace(
        LOOP, epochs=1, batch=90, clip=1e-3, lr=1.0, momentum=0.0, decay=0.0, schedule=Schedule()
    )
    ensemble = fit(mlp(), blobs(), recipe, machine=QUIET).ensemble
    moved = [p - q for p, q in zip(ensemble.member(0).parameters(), mlp().parameters(), strict=True)]
    assert torch.cat([m.flatten() for m in moved]).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_vectors_decay_only_if_asked():
    frozen = replace(blobs(), train=Split(torch.zeros(16, 6), torch.zeros(16, dtype=torch.long)))
    recipe = replace(LOOP, epochs=1, decay=0.5, decay_vectors=False, momentum=0.0, schedule=Schedule())
    network = mlp(norm=True)
    with torch.no_grad():
        network[1].weight.fill_(3.0)
    kept = fit(network, frozen, recipe, machine=QUIET).ensemble.member(0)
    assert torch.allclose(kept[1].weight, torch.full((8,), 3.0))  # no signal, so only decay could move it
    decayed = fit(network, frozen, replace(recipe, decay_vectors=True), machine=QUIET).ensemble.member(0)
    assert torch.allclose(decayed[1].weight, torch.full((8,), 3.0 * (1 - 0.1 * 0.5)))


def test_mixed_precision_trains():
    history = fit(mlp(), blobs(), LOOP, machine=replace(QUIET, precision="bf16-mixed"))
    assert history.last["accuracy"] > 0.8
    assert history.ensemble.parts["replicated"].phi["0.weight"].dtype == torch.float32


def test_the_folder_holds_history_and_ensemble(tmp_path):
    history = fit(mlp(), blobs(), LOOP, folder=tmp_path / "run", machine=QUIET)
    rows = list(csv.DictReader((tmp_path / "run" / "history.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert lines == history.rows
    assert [float(row["loss"]) for row in rows] == history["loss"]
    again = covey.load(tmp_path / "run" / "ensemble", network=mlp())
    x = torch.randn(4, 6)
    assert torch.equal(again.eval()(x), history.ensemble(x))


def test_tensorboard_files_hold_the_history(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history = fit(mlp(), blobs(), LOOP, folder=tmp_path, machine=replace(QUIET, tensorboard=True))
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(history["loss"])


def test_nan_names_member_step_and_rate_and_keeps_the_checkpoint(tmp_path):
    data = blobs()
    ensemble = covey.convert(mlp(), covey.DeepEnsemble(members=3), example=data.train.inputs[:2])

    def poison(group, count=[0]):  # noqa: B006
        count[0] += 1
        if count[0] == 9:
            with torch.no_grad():
                ensemble.parts["replicated"].phi["0.bias"][1] = float("nan")
        return step(group)

    step = torch.optim.SGD.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", poison)
        recipe = replace(LOOP, epochs=3, schedule=Schedule())
        with pytest.raises(
            TrainingError, match=r"member 1 became nan at step 9, with a learning rate of 0\.1"
        ):
            fit(ensemble, data, recipe, folder=tmp_path, machine=QUIET)
    resumed = fit(
        covey.convert(mlp(), covey.DeepEnsemble(members=3), example=data.train.inputs[:2]),
        data, recipe, folder=tmp_path, machine=QUIET, resume=True,
    )  # fmt: skip
    assert resumed.resumed is not None
    assert resumed.last["epoch"] == 3


BAD = [
    ({"network": "resnet"}, OptionError, "network is a torch.nn.Module or an ensemble; got str"),
    ({"network": mlp}, OptionError, "got function: call it first, and give what it returns"),
    (
        {"network": blobs(), "data": mlp()},
        OptionError,
        "network is a torch.nn.Module or an ensemble; got Data",
    ),
    ({"recipe": {"epochs": 3}}, OptionError, r"recipe is a covey.Recipe\(...\); got {'epochs': 3}"),
    ({"machine": "cpu"}, OptionError, r"machine is a covey.Machine\(...\); got 'cpu'"),
    ({"method": "packed"}, OptionError, "method is one of covey.METHODS"),
    ({"network": mlp(6, 2)}, DataError, "the network has 2 outputs and the data need 3: 3 classes"),
    ({"recipe": Recipe(loss="mse")}, OptionError, "loss='mse' is for numbers"),
    ({"recipe": Recipe(choose="rmse")}, OptionError, "choose='rmse' is not defined for classification"),
    ({"recipe": Recipe(augment=Augment(flip=True))}, OptionError, "augment.flip: only for images"),
    ({"resume": True}, OptionError, "resume=True needs the folder"),
    ({"machine": replace(QUIET, tensorboard=True)}, OptionError, "tensorboard=True needs a folder"),
    (
        {"network": mlp(norm=True), "recipe": Recipe(batch=89)},
        OptionError,
        "90 samples in batches of 89.*leaves a part of one sample.*Choose another batch",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "words"), BAD)
def test_mistakes_are_found_before_the_first_step(changes, kind, words):
    given = {"network": mlp(), "data": blobs(), "recipe": LOOP, "machine": QUIET} | changes
    with pytest.raises(kind, match=words):
        fit(given.pop("network"), given.pop("data"), given.pop("recipe"), **given)


def test_more_threads_than_cores_are_said(caplog, monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with caplog.at_level("WARNING", "covey"):
        fit(mlp(), blobs(), replace(LOOP, epochs=1), machine=replace(QUIET, threads=2))
    torch.set_num_threads(before)
    assert "threads=2 is more than the 1 cores of this machine" in caplog.text


def test_words_in_place_of_a_schedule_and_an_augmentation():
    with pytest.raises(OptionError, match=r"schedule is a covey.Schedule\(kind=...\); got 'cosine'"):
        Recipe(schedule="cosine")
    with pytest.raises(OptionError, match=r"augment is a covey.data.Augment\(...\); got True"):
        Recipe(augment=True)


def test_more_mistakes():
    data = blobs()
    with pytest.raises(
        OptionError, match="go by a validation score, and the data have no validation samples"
    ):
        fit(
            mlp(),
            replace(data, validation=data.train.take(torch.arange(0))),
            Recipe(keep="best"),
            machine=QUIET,
        )
    with pytest.raises(DataError, match="no training samples"):
        fit(mlp(), replace(data, train=data.train.take(torch.arange(0))), LOOP, machine=QUIET)
    ensemble = covey.convert(mlp(), covey.Replicate(members=1))
    with pytest.raises(OptionError, match="an ensemble already, so method= has no meaning"):
        fit(ensemble, data, LOOP, method=covey.Replicate(members=2), machine=QUIET)
    with pytest.raises(OptionError, match="every parameter is frozen"):
        fit(covey.convert(mlp(), covey.Replicate(members=1)).requires_grad_(False), data, LOOP, machine=QUIET)
    with pytest.raises(OptionError, match="label smoothing are for classes"):
        fit(mlp(1, 1), line(), Recipe(smoothing=0.1), machine=QUIET)
    with pytest.raises(OptionError, match="3 of them do not divide among 2"):
        Machine(devices=2, shards=3)
    with pytest.raises(OptionError, match="precision is one of '32-true'"):
        Machine(precision="fp8")
    with pytest.raises(OptionError, match="accelerator is one of 'auto'"):
        Machine(accelerator="tpu9")


def test_a_folder_that_cannot_be_used_is_an_error_before_the_first_epoch(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write to .*Choose another folder"):
        fit(mlp(), blobs(), LOOP, folder=tmp_path / "file" / "run", machine=QUIET)
    fit(mlp(), blobs(), LOOP, folder=tmp_path / "run", machine=QUIET)
    with pytest.raises(StoreError, match=r"holds a run already.*resume=True"):
        fit(mlp(), blobs(), LOOP, folder=tmp_path / "run", machine=QUIET)
    usage = type("Usage", (), {"free": 1000})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: usage)
        with pytest.raises(StoreError, match=r"MiB free, and its checkpoints take about"):
            fit(mlp(), blobs(), LOOP, folder=tmp_path / "other", machine=QUIET)
