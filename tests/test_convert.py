from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import covey
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import examine
from law_networks import NETWORKS, network


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_the_network_and_the_random_state_stay_as_they_were() -> None:
    net, x = network("convnet"), NETWORKS["convnet"].x(2)
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    covey.convert(net, covey.DeepEnsemble(), example=x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_the_seed_decides_and_members_differ() -> None:
    first, again, other = (covey.convert(small(), covey.DeepEnsemble(), seed=seed) for seed in (1, 1, 2))
    w = [ens.tensors(0)["0.weight"] for ens in (first, again, other)]
    assert torch.equal(w[0], w[1])
    assert not torch.equal(w[0], w[2])
    assert not torch.equal(w[0], first.tensors(1)["0.weight"])
    assert not first.alike
    assert covey.convert(small(), covey.Replicate()).alike


@pytest.mark.parametrize(
    ("name", "head", "stem"),
    [
        ("mlp", {"5.weight", "5.bias"}, {"0.weight", "0.bias"}),
        ("resnet", {"fc.weight", "fc.bias"}, {"stem.weight"}),
        ("densenet", {"out.weight", "out.bias"}, {"layers.0.weight", "layers.0.bias"}),
        ("vit", {"head.weight", "head.bias"}, {"patch.weight", "patch.bias"}),
        ("tied", {"embedding.weight", "decoder.bias"}, {"embedding.weight"}),
        ("twice", {"last.weight", "last.bias"}, {"first.weight", "first.bias"}),
        ("lstm", {"out.weight", "out.bias"}, {"embedding.weight"}),
        ("bare", {"out"}, {"weight"}),
        ("bert", {"classifier.weight", "classifier.bias"}, {"bert.embeddings.word_embeddings.weight"}),
    ],
)
def test_head_and_stem_are_found_by_dataflow(name: str, head: set[str], stem: set[str]) -> None:
    law = NETWORKS[name]
    body = examine(network(name), example=law.x(3), output=law.output)
    assert set(body.head) == head
    # a tied decoder's bias belongs to the head's layer, and only its weight to the first layer
    assert set(body.stem) - {"decoder.bias"} == stem


def test_the_user_can_name_head_and_stem() -> None:
    ens = covey.convert(small(), covey.MultiHead(members=2), head="0")
    assert {row.name for row in ens.coverage.rows if row.role == "replicated"} == {"0.weight", "0.bias"}


def test_the_prefix_before_the_first_member_tensor_keeps_one_set_of_statistics() -> None:
    net = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    )
    ens = covey.convert(net, covey.Replicate(members=2, where="2"), example=torch.randn(4, 4))
    roles = {row.name: row.role for row in ens.coverage.rows}
    assert roles["1.running_mean"] == "shared buffer"
    assert roles["3.running_mean"] == "member buffer"


def test_frozen_tensors_stay_frozen_and_shared() -> None:
    net = small()
    net[0].requires_grad_(False)
    ens = covey.convert(net, covey.DeepEnsemble(members=3))
    row = next(row for row in ens.coverage.rows if row.name == "0.weight")
    assert (row.role, row.note) == ("shared", "frozen, stays as it is")
    assert torch.equal(ens.tensors(1)["0.weight"], net[0].weight)
    assert not ens.member(0)[0].weight.requires_grad
    assert all(p.requires_grad for g in ens.param_groups(0.1) for p in g["params"])


def test_the_coverage_table_prints_every_tensor_aligned() -> None:
    table = covey.dry_run(network("vit"), covey.BatchEnsemble(), example=NETWORKS["vit"].x(2))
    assert isinstance(table, covey.Coverage)
    lines = str(table).splitlines()
    names = dict(network("vit").named_parameters())
    assert [line.split()[0] for line in lines[2 : 2 + len(names)]] == list(names)
    assert next(row for row in table.rows if row.name == "token").note == "not a matrix"
    starts = {line.index(row.role) for line, row in zip(lines[2:], table.rows, strict=False)}
    assert len(starts) == 1
    assert lines[-1] == f"{table.total:,} parameters, {table.ratio:.3f} of the network's {table.network:,}"


def test_one_of_a_thing_has_no_plural() -> None:
    table = covey.convert(nn.Linear(3, 2, bias=False), covey.DeepEnsemble(members=1)).coverage
    assert table.summary().startswith("DeepEnsemble, 1 member: 6 parameters")
    assert "replicated: 1 tensor, 6" in table.summary()


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_reparametrised_layers_work(norm: object) -> None:
    net = small()
    norm(net[0])  # type: ignore[operator]
    x = torch.randn(5, 4)
    for method in (covey.DeepEnsemble(members=2), covey.BatchEnsemble(members=2), covey.Replicate(members=2)):
        ens = covey.convert(net, method, example=x).eval()
        ens.run = "loop"
        for k in range(2):
            torch.testing.assert_close(ens(x)[k], ens.member(k).eval()(x))
    table = covey.dry_run(net, covey.BatchEnsemble(), example=x)
    made = [row for row in table.rows if "parametrizations" in row.name and row.role == "rank-one"]
    assert [net.get_parameter(row.name).shape for row in made] == [net[0].weight.shape]


@pytest.mark.parametrize("name", ["low-rank", "hypernetwork", "mixture", "superweights", "tabm"])
def test_methods_that_make_weights_make_what_reparametrised_weights_are_computed_from(name: str) -> None:
    hidden = parametrizations.weight_norm(nn.Linear(16, 16))
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 16)), nn.ReLU(), hidden, nn.Linear(16, 3))
    ens = covey.convert(net, covey.METHODS[name](members=2), example=torch.randn(4, 8))
    roles = {row.name: row.role for row in ens.coverage.rows}
    assert roles["2.parametrizations.weight.original1"] != "shared"
    assert roles["2.parametrizations.weight.original0"] == "shared"


class Shape(nn.Module):
    def __init__(self, answer: str) -> None:
        super().__init__()
        self.fc, self.answer = nn.Linear(4, 3), answer

    def forward(self, x: Tensor) -> object:
        y = self.fc(x)
        return {"dict": {"logits": y, "h": x}, "tuple": (x, y), "list": [y], "odd": {"a": y, "b": x}}[
            self.answer
        ]


@pytest.mark.parametrize(
    ("answer", "output"), [("dict", None), ("dict", "logits"), ("tuple", 1), ("list", None), ("odd", "a")]
)
def test_outputs_of_many_shapes(answer: str, output: str | int | None) -> None:
    ens = covey.convert(
        Shape(answer), covey.DeepEnsemble(members=2), example=torch.randn(2, 4), output=output
    )
    assert ens(torch.randn(5, 4)).shape == (2, 5, 3)


def test_predictions_of_images_and_sequences_have_classes_last() -> None:
    dense = covey.convert(network("densenet"), covey.DeepEnsemble(members=2))
    assert dense.predict(NETWORKS["densenet"].x(3)).probs.shape == (3, 5, 5, 4)
    tied = covey.convert(network("tied"), covey.DeepEnsemble(members=2))
    assert tied.predict(NETWORKS["tied"].x(3)).probs.shape == (3, 5, 11)


def test_predict_evaluates_and_leaves_the_mode() -> None:
    ens = covey.convert(
        network("convnet"), covey.DeepEnsemble(members=2), example=NETWORKS["convnet"].x(2)
    ).train()
    ens.skeleton().norm.eval()
    buffers = [b.clone() for b in ens.buffers()]
    prediction = ens.predict(NETWORKS["convnet"].x(1))
    assert not prediction.probs.requires_grad
    assert ens.training
    assert ens.skeleton().body.training
    assert not ens.skeleton().norm.training
    assert all(torch.equal(a, b) for a, b in zip(buffers, ens.buffers(), strict=True))


def test_gamma_scales_what_shared_tensors_get() -> None:
    net, x = small(), torch.randn(5, 4)
    gradients = []
    for gamma in (1.0, 0.25):
        ens = covey.convert(net, covey.MultiHead(members=4, gamma=gamma), example=x)
        ens(x).square().sum().backward()
        gradients.append({name: p.grad for name, p in ens.named_parameters()})
    for name in gradients[0]:
        factor = 4.0 if "shared" in name else 1.0
        torch.testing.assert_close(gradients[0][name], factor * gradients[1][name])


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: covey.DeepEnsemble(members=0), "at least 1; got 0"),
        (lambda: covey.Replicate(init="new"), "one of 'copy', 'fresh'; got 'new'"),
        (lambda: covey.Replicate(noise=-1), "at least 0; got -1"),
        (lambda: covey.BatchEnsemble(init="x"), "one of 'normal', 'sign', 'ones'; got 'x'"),
        (lambda: covey.BatchEnsemble(norms="x"), "one of 'member', 'shared'; got 'x'"),
        (lambda: covey.BatchEnsemble(positive=2), "from 0 to 1; got 2"),
        (lambda: covey.BatchEnsemble(spread=-1), "at least 0; got -1"),
        (lambda: covey.Masksembles(scale=0.5), "at least 1; got 0.5"),
        (lambda: covey.MIMO(rho=2), "from 0 to 1; got 2"),
        (lambda: covey.MIMO(repeats=0), "at least 1; got 0"),
        (lambda: covey.MIMO(init="x"), "one of 'copy', 'fresh'"),
        (lambda: covey.MCDropout(p=1.5), "between 0 and 1; got 1.5"),
        (lambda: covey.MCDropout(after=("0",)), "needs p="),
    ],
)
def test_bad_options_are_refused(make: object, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()  # type: ignore[operator]


def _nan() -> nn.Module:
    net = small()
    with torch.no_grad():
        net[2].weight[0, 0] = float("nan")
    return net


@pytest.mark.parametrize(
    ("net", "options", "words"),
    [
        (
            small,
            {"example": torch.randn(2, 5)},
            r"rejects the example, whose shapes are \[\(2, 5\)\].*mat1 and mat2",
        ),
        (_nan, {}, "'2.weight' holds 1 of 24 values that are NaN"),
        (lambda: nn.LazyLinear(3), {}, "'weight' has no shape yet.*Call the network once"),
        (lambda: nn.ReLU(), {}, "no parameters"),
        (lambda: Shape("odd"), {"example": torch.randn(2, 4)}, "keys 'a', 'b'; say which"),
        (
            lambda: Shape("odd"),
            {"example": torch.randn(2, 4), "output": "c"},
            "output='c' is not in what the network",
        ),
        (
            lambda: Shape("tuple"),
            {"example": torch.randn(2, 4), "output": 7},
            "output=7 is not in what the network",
        ),
        (small, {"task": "ranking"}, "task is one of.*got 'ranking'"),
        (lambda: 7, {}, "network is a torch.nn.Module; got int"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_bad_networks_and_examples_are_refused(net: object, options: dict, words: str) -> None:
    with pytest.raises(covey.CoveyError, match=words):
        covey.convert(net(), covey.DeepEnsemble(), **options)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            covey.Replicate(where="3.weight"),
            "'3.weight' matches none of the network's 4.*nearest names are '2.weight'",
        ),
        (covey.Replicate(where="("), "no regular expression"),
        (covey.Replicate(where="norms"), "no normalisation layer"),
        (covey.MultiHead(), "needs to know the network's head.*example"),
        (covey.Masksembles(), "first layer.*example"),
        (covey.MIMO(), "must know the network's stem"),
        (covey.MCDropout(), "draws random numbers.*after="),
        (covey.MCDropout(p=0.2, after=("fc",)), "'fc' is no module"),
        (covey.BatchEnsemble(where="bias"), "none of the tensors.*weight matrix"),
        (covey.Replicate(init="fresh", factory=lambda: nn.Linear(4, 3)), "another architecture.*'0.weight'"),
        (covey.DeepEnsemble, "object with options, such as DeepEnsemble"),
        ("packed", "got str"),
    ],
)
def test_bad_methods_are_refused(method: covey.Method, words: str) -> None:
    with pytest.raises(covey.CoveyError, match=words):
        covey.convert(small(), method)


def test_an_ensemble_is_not_converted_again() -> None:
    with pytest.raises(OptionError, match="an ensemble already"):
        covey.convert(covey.convert(small(), covey.DeepEnsemble()), covey.DeepEnsemble())


def test_frozen_selection_is_refused() -> None:
    with pytest.raises(ConversionError, match="only frozen tensors"):
        covey.convert(small().requires_grad_(False), covey.Replicate())


def test_features_too_few_for_masks_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 3))
    with pytest.raises(ConversionError, match="no layer can be masked with 4 members and scale 2.0"):
        covey.convert(net, covey.Masksembles(), example=torch.randn(2, 4))


def test_calls_with_wrong_members_are_refused() -> None:
    ens = covey.convert(small(), covey.DeepEnsemble(members=2))
    with pytest.raises(OptionError, match="member 2 was asked for.*0 to 1"):
        ens(torch.randn(1, 4), members=[2])
    with pytest.raises(OptionError, match=r"leading axis of 2 members; got one of shape \(3, 4\)"):
        ens(torch.randn(3, 4), per_member=True)
    with pytest.raises(OptionError, match="'auto', 'loop', .*; got 'fast'"):
        ens.run = "fast"


def test_a_way_of_training_is_given_to_fit():
    with pytest.raises(
        OptionError, match=r"LatePhase is a way of training.* covey\.fit\(network, data, method=LatePhase"
    ):
        covey.convert(nn.Linear(2, 2), covey.LatePhase(), example=torch.zeros(1, 2))
