from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from meta_wrn import built, wrn_28_10
from torch import Tensor, nn

import covey
from covey import zoo
from covey.cli import recipes
from covey.methods.superweights import SuperWeights
from covey.methods.superweights.refinement import layer_gradients, similarity
from covey.networks.anatomy import examine
from covey.papers.presets import PRESETS
from covey.parts.banks import FlatBank
from covey.parts.templates import Templates


class Net(nn.Module):
    """Blocks of two convolutions with norms and a shortcut; of any width, depth and kernel dimension."""

    def __init__(self, width: int, blocks: int, dims: int = 2) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d)[dims - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1]
        self.stem = conv(2, width, 3, padding=1)
        self.convs = nn.ModuleList(conv(width, width, 3, padding=1, bias=False) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(norm(width) for _ in range(2 * blocks))
        self.mix = conv(width, width + 2, 1)
        self.head = nn.Linear(width + 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x)).relu()
        return self.head(self.mix(x).flatten(2).mean(2))


X = torch.randn(6, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 3, 0, 1])


def nets() -> list[nn.Module]:
    torch.manual_seed(1)
    return [Net(6, 2).double(), Net(4, 1).double(), Net(9, 1).double()]


def converted(**options: object) -> covey.Ensemble:
    ensemble = covey.convert(nets(), SuperWeights(**{"budget": 2.0, **options}), example=X)  # type: ignore[arg-type]
    ensemble.run = "loop"
    return ensemble


def part_of(ensemble: covey.Ensemble) -> Templates:
    part = ensemble.parts["superweights"]
    assert isinstance(part, Templates)
    return part


def count(ensemble: covey.Ensemble) -> int:
    return sum(p.numel() for p in ensemble.parameters())


# --- laws for members of different shapes -------------------------------------------------------------------------

MAKERS = {
    "superweights": lambda: converted(),
    "shared layers": lambda: converted(share="layers"),
    "exploring": lambda: converted(refine_at=3),
    "shapeshifter": lambda: covey.convert(nets(), covey.ShapeShifter(budget=2.0), example=X),
}
EACH = pytest.mark.parametrize("name", MAKERS)


@EACH
@pytest.mark.parametrize("mode", [False, True])
def test_a_member_is_a_plain_network(name: str, mode: bool) -> None:
    ensemble = MAKERS[name]().train(mode)
    plain = [ensemble.member(k).train(mode) for k in range(3)]
    outputs = ensemble(X)
    assert outputs.shape == (3, 6, 4)
    for k, network in enumerate(plain):
        assert not any("covey" in type(module).__module__ for module in network.modules())
        torch.testing.assert_close(outputs[k], network(X), rtol=1e-9, atol=1e-9)
        after = dict(ensemble.member(k).named_buffers())
        for label, buffer in network.named_buffers():
            torch.testing.assert_close(after[label], buffer, rtol=1e-9, atol=1e-9)


@EACH
def test_members_inputs_and_own_tensors_touch_no_other_member(name: str) -> None:
    ensemble = MAKERS[name]().train()
    x = torch.stack([X, X.flip(0), X * 2])
    before = copy.deepcopy(ensemble)(x, per_member=True)
    with torch.no_grad():
        for parameter in ensemble.parts["own"].phi[0].parameters():
            parameter += 1
    outputs = ensemble(torch.cat([x[:1] + 1, x[1:]]), per_member=True)
    assert not torch.allclose(outputs[0], before[0])
    torch.testing.assert_close(outputs[1:], before[1:], rtol=1e-9, atol=1e-9)
    outputs[1].sum().backward()
    for k in (0, 2):
        assert not any(p.grad is not None and p.grad.any() for p in ensemble.parts["own"].phi[k].parameters())


@EACH
def test_every_parameter_gets_a_gradient_and_is_in_one_group(name: str) -> None:
    ensemble = MAKERS[name]().train()
    covey.loss(ensemble(X), Y).backward()
    assert all(p.grad is not None and p.grad.any() for p in ensemble.parameters())
    grouped = [id(p) for group in ensemble.param_groups(0.1, 0.01) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in ensemble.parameters())


@EACH
def test_save_and_load_give_the_same_bits(name: str, tmp_path) -> None:
    ensemble = MAKERS[name]()
    ensemble.train()(X)
    covey.save(ensemble.eval(), tmp_path)
    loaded = covey.load(tmp_path, network=nets())
    with torch.no_grad():
        assert torch.equal(loaded(X), ensemble(X))
    assert loaded.coverage.total == ensemble.coverage.total == count(ensemble)


@pytest.mark.parametrize("budget", [2.0, 2.4, 2.9, 2600])
@pytest.mark.parametrize("maker", [SuperWeights, covey.ShapeShifter])
def test_the_budget_is_never_exceeded(maker: type, budget: float) -> None:
    networks = nets()
    mean = sum(p.numel() for net in networks for p in net.parameters()) / 3
    ensemble = covey.convert(networks, maker(budget=budget), example=X)
    allowed = budget if isinstance(budget, int) else budget * mean
    assert count(ensemble) <= allowed
    assert count(ensemble) == ensemble.coverage.total
    if isinstance(budget, float):
        assert ensemble.coverage.ratio == pytest.approx(count(ensemble) / mean, rel=1e-3)


def test_every_weight_is_the_slabs_put_together() -> None:
    """Against a second construction, cell by cell: the slab that a cell lies in, its templates and its row."""
    ensemble = converted()
    part = part_of(ensemble)
    plans = ensemble.layout.facts["clusters"]
    for cluster, layers in enumerate(plans):
        labels = [label for label in part.banks if label.startswith(f"cluster {cluster} ")]
        for body, name in layers:
            weight = ensemble.tensors(body)[name]
            made = part.makeup[body][name]
            filled = torch.zeros(weight.shape[:2])
            for piece in made.pieces:
                assert piece.bank in labels
                bank = part.named_banks()[piece.bank]
                where = piece.into or (slice(0, weight.shape[0]), slice(0, weight.shape[1]))
                filled[where] += 1
                row = bank.alpha[piece.rows[0]]
                o, i = where[0].stop - 1, where[1].stop - 1  # the last cell
                template = bank.theta[:, o - where[0].start, i - where[1].start]
                expected = piece.scale * (row[:, None, None] * template).sum(0)
                torch.testing.assert_close(weight[o, i], expected)
            assert filled.eq(1).all()
    kernels = [{tuple(nets()[body].get_parameter(name).shape[2:]) for body, name in c} for c in plans]
    assert all(len(each) == 1 for each in kernels)


def test_weights_start_with_the_variance_of_their_real_fan_in() -> None:
    networks = [Net(32, 1), Net(48, 1)]
    ensemble = covey.convert(networks, SuperWeights(budget=2.0), example=X.float())
    for k, fan in ((0, 32 * 9), (1, 48 * 9)):
        assert ensemble.member(k).convs[1].weight.var().item() * fan / 2 == pytest.approx(1, abs=0.15)


def test_one_network_gives_members_with_coefficients_of_their_own() -> None:
    ensemble = covey.convert(nets()[0], SuperWeights(members=3, budget=2.0), example=X)
    assert all(
        bank.alpha.ndim == 3 and len(bank.alpha) == 3 for bank in part_of(ensemble).named_banks().values()
    )
    outputs = ensemble.eval()(X)
    assert not torch.allclose(outputs[0], outputs[1])


@pytest.mark.parametrize("budget", [15_000_000, 36_500_000, 120_000_000])
def test_one_superweight_per_layer_on_wrn_28_10_uses_its_budget(budget: int) -> None:
    ensemble = built(SuperWeights(members=4, budget=budget, clusters="shape"), [wrn_28_10()])
    smallest = 16 * 3 * 9 + 4  # the first layer's template and a coefficient for each member
    assert budget - smallest < count(ensemble) <= budget
    assert ensemble.layout.facts["unused"] == budget - count(ensemble)
    pieces = [made.pieces for made in part_of(ensemble).makeup[0].values()]
    assert len(pieces) == 28
    assert all(len(each) == 1 for each in pieces)  # one SuperWeight a layer


def test_a_template_for_every_shape_takes_more_than_seven_million() -> None:
    alone = 3 * 9 * 16 + 16 * 9 * 160 + 160 * 9 * 320 + 320 * 9 * 640 + 16 * 160 + 160 * 320 + 320 * 640
    grouped = 9 * (160**2 + 320**2 + 640**2)
    one_each = (
        alone + grouped + 4 * 28 + 4 * (17_952 + 6_410)
    )  # coefficients, norms and heads of four members
    enough = built(SuperWeights(members=4, budget=one_each, clusters="shape"), [wrn_28_10()])
    assert count(enough) == one_each
    assert {len(bank.theta) for bank in part_of(enough).named_banks().values()} == {1}
    less = built(SuperWeights(members=4, budget=one_each - 1, clusters="shape"), [wrn_28_10()])
    assert len(part_of(less).banks) == 1
    assert one_each > 7_000_000


def test_seven_million_on_wrn_28_10_is_one_vector_in_which_templates_overlap() -> None:
    ensemble = built(SuperWeights(members=4, budget=7_000_000, clusters="shape"), [wrn_28_10()])
    (bank,) = part_of(ensemble).named_banks().values()
    assert isinstance(bank, FlatBank)
    assert bank.alpha.shape == (4, 28, 5)  # members' own: five coefficients for each of 28 layers
    assert len(bank.theta) == 7_000_000 - 4 * 28 * 5 - 4 * (17_952 + 6_410)
    assert count(ensemble) == 7_000_000
    mixture = built(covey.Mixture(members=4, budget=7_000_000, heads="member"), [wrn_28_10()])
    assert count(mixture) == count(ensemble)
    (flat,) = mixture.parts["mixture"].named_banks().values()  # type: ignore[operator]
    assert flat.theta.shape == bank.theta.shape
    assert flat.alpha.shape == bank.alpha.shape


@pytest.mark.parametrize(("budget", "vectors"), [(0.9, 1), (1.1, 4)], ids=["one vector", "one per cluster"])
@pytest.mark.parametrize(
    "options", [{}, {"share": "layers"}, {"refine_at": 1}, {"decouple_at": 1, "beta": 1.0}], ids=str
)
def test_slabs_that_overlap_are_read_out_of_vectors(
    options: dict, budget: float, vectors: int, tmp_path
) -> None:
    """Against a second construction: index by index."""
    ensemble = converted(budget=budget, clusters="depth", **options)
    part = part_of(ensemble)
    banks = part.named_banks()
    assert all(isinstance(bank, FlatBank) for bank in banks.values())
    assert len(banks) == vectors
    mean = sum(p.numel() for net in nets() for p in net.parameters()) / 3
    assert count(ensemble) <= int(budget * mean)
    assert count(ensemble) == ensemble.coverage.total
    for k in range(3):
        for name, made in part.makeup[k].items():
            weight = torch.full(made.shape, torch.nan, dtype=torch.float64)
            for piece in made.pieces:
                bank = banks[piece.bank]
                n = len(bank.theta)
                size = math.prod(piece.shape)
                step = min(size, n // 5)
                flat = torch.zeros(size, dtype=torch.float64)
                for i in range(5):
                    where = (piece.start + i * step + torch.arange(size)) % n
                    flat += piece.scale * bank.alpha[piece.rows[0], i].detach() * bank.theta[where].detach()
                weight[piece.into or slice(None)] = flat.view(piece.shape)
            torch.testing.assert_close(ensemble.tensors(k)[name].detach(), weight)
    if ensemble.method.turns():
        outputs = ensemble.eval()(X).detach()
        said = ensemble.method.after_epoch(ensemble, 1, [(X, Y)])
        assert said == ("restart" if "refine_at" in options else "changed")
        if said == "changed":  # copies of rows, so nothing changes yet
            torch.testing.assert_close(ensemble(X).detach(), outputs)
        assert count(ensemble) <= int(budget * mean)
    covey.save(ensemble.eval(), tmp_path)
    with torch.no_grad():
        assert torch.equal(covey.load(tmp_path, network=nets())(X), ensemble(X))


def test_below_one_template_per_slab_a_cluster_has_numbers_of_its_own() -> None:
    """Otherwise it would make no difference which layers are in one cluster, and refinement none at all."""
    method = SuperWeights(members=4, budget=7_000_000)
    ensemble = built(method, [wrn_28_10()])
    assert count(ensemble) == 7_000_000
    clusters = ensemble.layout.facts["clusters"]
    (makeup,) = part_of(ensemble).makeup
    for number, cluster in enumerate(clusters):
        read = {piece.bank for _, name in cluster for piece in makeup[name].pieces}
        assert read == {f"cluster {number} vector"}
    for label, bank in part_of(ensemble).named_banks().items():
        read = [p for made in makeup.values() for p in made.pieces if p.bank == label]
        assert max(math.prod(piece.shape) for piece in read) <= len(bank.theta)
    # alone, each layer has the most numbers; together, as few as the largest needs
    bodies = [wrn_28_10()]
    alone = [[layer] for cluster in clusters for layer in cluster]
    halves = [half for cluster in clusters for half in (cluster[::2], cluster[1::2]) if half]
    for too_fine in (alone, halves):
        with pytest.raises(covey.CoveyError, match="SuperWeights needs at least"):
            method.redesign(bodies, ensemble.layout, too_fine, 0.1)
    first = [half for half in (clusters[0][::2], clusters[0][1::2]) if half]
    finer = method.redesign(bodies, ensemble.layout, [*first, *clusters[1:]], 0.1)
    assert len(finer.facts["banks"]) == len(clusters) + 1


def test_members_of_one_network_have_rows_of_their_own_in_the_vector() -> None:
    """Also where a cluster has several slabs, each with rows of all members."""
    ensemble = covey.convert(nets()[0], SuperWeights(members=3, budget=0.6), example=X)
    part = part_of(ensemble)
    (bank,) = part.named_banks().values()
    assert isinstance(bank, FlatBank)
    assert bank.alpha.ndim == 3
    rows = len(bank.alpha[0])
    used = [piece.rows for made in part.makeup[0].values() for piece in made.pieces]
    assert len(used) == rows
    assert sorted(row for each in used for row in each) == list(range(3 * rows))
    assert all(row // rows == k for each in used for k, row in enumerate(each))


def test_a_budget_left_unused_is_said() -> None:
    with pytest.warns(UserWarning, match=r"leaves [\d,]+ of its budget of 120,000,000.*templates=8"):
        capped = built(
            SuperWeights(members=4, budget=120_000_000, clusters="shape", templates=8), [wrn_28_10()]
        )
    assert count(capped) < 60_000_000
    assert capped.layout.facts["unused"] == 120_000_000 - count(capped)


def test_the_homogeneous_preset_has_mixture_s_templates() -> None:
    """Paper 3 prints paper 4's numbers for it: 6, 7 and 7 templates at 36.5 M, 105 coefficients a member."""
    names, method = PRESETS["homogeneous"]
    assert names == ("wrn-28-10",)
    assert method == covey.Mixture(members=4, budget=36_500_000)
    ensemble = built(method, [wrn_28_10()])
    banks = ensemble.parts["mixture"].named_banks().values()  # type: ignore[operator]
    assert [tuple(bank.theta.shape[:2]) for bank in banks] == [(6, 160), (7, 320), (7, 640)]
    assert sum(bank.alpha[0].numel() for bank in banks) == 105


@pytest.mark.parametrize(
    "preset", ["heterogeneous", "gradient-conflict", "multi-width", "multi-depth-width", "families"]
)
def test_presets_refine_four_depth_clusters_at_a_tau_of_one_tenth(preset: str) -> None:
    _, method = PRESETS[preset]
    assert isinstance(method, SuperWeights)
    assert (method.clusters, method.bins, method.refine_at, method.tau) == ("depth", 4, 20, 0.1)


# --- refinement ---------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_the_plain_members_in_eval_mode() -> None:
    ensemble = converted(refine_at=1).train()
    batches = [(X[:3], Y[:3]), (X[3:], Y[3:])]
    found = layer_gradients(ensemble, batches)
    for k in range(3):
        network = ensemble.member(k).eval()
        for x, y in batches:
            nn.functional.cross_entropy(network(x), y).backward()
        for name, parameter in network.named_parameters():
            if (k, name) in found:
                torch.testing.assert_close(found[k, name], parameter.grad)
    assert {name for k, name in found if k == 1} == {
        "stem.weight",
        "convs.0.weight",
        "convs.1.weight",
        "mix.weight",
    }
    assert ensemble.training
    assert not any(m.running_mean.any() for m in ensemble.member(0).norms)


def test_similarity_is_the_cosine_over_what_both_have() -> None:
    a, b = torch.randn(3, 4, 3, 3), torch.randn(5, 2, 3, 3)
    expected = torch.cosine_similarity(a[:, :2].flatten(), b[:3].flatten(), dim=0).item()
    found = similarity({"a": a, "b": b, "zero": torch.zeros(1, 1, 3, 3)}, ["a", "b", "zero"])
    assert found["a", "b"] == pytest.approx(expected, abs=1e-6)
    assert found["a", "zero"] == 0


def test_refinement_unites_layers_above_tau_and_starts_again(tmp_path) -> None:
    ensemble = converted(refine_at=2, tau=0.1, budget=2.5)
    assert all(
        bank.alpha.shape[0] == 1 for bank in part_of(ensemble).named_banks().values()
    )  # shared in a cluster
    before = ensemble.layout.facts["clusters"]
    gradients = layer_gradients(ensemble, [(X, Y)])
    assert ensemble.method.after_epoch(ensemble, 1, [(X, Y)]) is None
    assert ensemble.method.after_epoch(ensemble, 2, [(X, Y)]) == "restart"
    plan = ensemble.layout.facts
    assert not plan["exploring"]
    label = {(body, name): i for i, group in enumerate(plan["clusters"]) for body, name in group}
    for cluster in before:
        keys = [tuple(key) for key in cluster]
        for (a, b), cosine in similarity(gradients, keys).items():
            if cosine > 0.1:
                assert label[a] == label[b]
        for group in plan["clusters"]:  # a new cluster never leaves its old one
            assert not set(map(tuple, group)) & set(keys) or set(map(tuple, group)) <= set(keys)
    assert len(plan["clusters"]) > len(before)
    json.dumps(plan)
    covey.save(ensemble.eval(), tmp_path)
    with torch.no_grad():
        assert torch.equal(covey.load(tmp_path, network=nets())(X), ensemble(X))
    assert count(ensemble) <= 2.5 * sum(p.numel() for net in nets() for p in net.parameters()) / 3
    assert ensemble.method.after_epoch(ensemble, 2, [(X, Y)]) is None  # not a second time


def test_tau_is_lowered_until_the_budget_holds() -> None:
    from covey.methods.superweights.refinement import refine

    alone = converted(refine_at=1, tau=1.0, budget=6.0)
    assert refine(alone, [(X, Y)]) == 1.0
    assert all(len(group) == 1 for group in alone.layout.facts["clusters"])
    tight = converted(refine_at=1, tau=1.0, budget=2300)
    assert refine(tight, [(X, Y)]) < 1.0
    assert count(tight) <= 2300


def test_decoupling_gives_copies_to_members_that_pull_apart(tmp_path) -> None:
    ensemble = converted(decouple_at=1, beta=0.5, budget=6.0)
    part = part_of(ensemble)
    old = {label: bank.alpha.detach().clone() for label, bank in part.named_banks().items()}
    pieces = {(k, n): made.pieces for k in range(3) for n, made in part.makeup[k].items()}
    # what each layer gives its row, from autograd on the coefficients themselves
    pull: dict[tuple[str, int], dict[tuple[int, str], Tensor]] = {}
    for k in range(3):
        ensemble.eval()
        for name in part.makeup[k]:
            tensors = {n: t.detach() for n, t in ensemble.tensors(k).items()} | {
                name: ensemble.tensors(k)[name]
            }
            buffers = ensemble.buffers_of(k)[0].member(0)
            output = ensemble.call(k, {**tensors, **buffers}, (X,), {})
            value = nn.functional.cross_entropy(output, Y)
            labels = [piece.bank for piece in pieces[k, name]]
            alphas = [part.named_banks()[label].alpha for label in labels]
            for piece, gradient in zip(pieces[k, name], torch.autograd.grad(value, alphas), strict=True):
                pull.setdefault((piece.bank, piece.rows[0]), {})[k, name] = gradient[piece.rows[0]]
    with torch.no_grad():
        outputs = ensemble(X)
    assert ensemble.method.after_epoch(ensemble, 1, [(X, Y)]) == "changed"
    with torch.no_grad():
        torch.testing.assert_close(ensemble(X), outputs)  # copies, so nothing changes yet
    split = 0
    for (label, row), pulls in pull.items():
        new = {
            key: next(p.rows[0] for p in part.makeup[key[0]][key[1]].pieces if p.bank == label)
            for key in pulls
        }
        bank = part.named_banks()[label]
        for key, place in new.items():
            torch.testing.assert_close(bank.alpha[place], old[label][row])
            for other, also in new.items():
                if torch.cosine_similarity(pulls[key], pulls[other], dim=0) > 0.5 + 1e-9:
                    assert place == also
        split += len(set(new.values())) > 1
    assert split > 0
    covey.save(ensemble.eval(), tmp_path)
    with torch.no_grad():
        assert torch.equal(covey.load(tmp_path, network=nets())(X), ensemble(X))
    assert count(ensemble) == ensemble.coverage.total
    assert count(ensemble) <= 6.0 * sum(p.numel() for net in nets() for p in net.parameters()) / 3


def test_refinement_of_one_network_s_members_adds_their_gradients() -> None:
    ensemble = covey.convert(nets()[0], SuperWeights(members=2, budget=3.0, refine_at=1, tau=0.3), example=X)
    assert ensemble.method.after_epoch(ensemble, 1, [(X, Y)]) == "restart"
    assert {body for group in ensemble.layout.facts["clusters"] for body, _ in group} == {0}
    assert ensemble(X).shape == (2, 6, 4)


def test_nan_gradients_during_refinement_name_the_layer() -> None:
    ensemble = converted(refine_at=1)
    with pytest.raises(covey.CoveyError, match=r"gradient of member 0's 'stem.weight' is NaN.*learning rate"):
        layer_gradients(ensemble, [(X * float("nan"), Y)])
    with pytest.raises(covey.CoveyError, match="no batch"):
        layer_gradients(ensemble, [])


def test_bad_input_says_what_to_do() -> None:
    with pytest.raises(covey.CoveyError, match=r"at least [\d,]+ parameters.*'(mix|convs.\d|stem).weight'"):
        converted(budget=300)
    one, two = examine(Net(4, 1, dims=1), example=X[:, :, 0].float()), examine(Net(4, 1), example=X.float())
    with pytest.raises(covey.CoveyError, match=r"member 0 have \[1\] dimensions and those of member 1 \[2\]"):
        built(SuperWeights(budget=5.0), [one, two])
    with pytest.raises(covey.CoveyError, match="members=7, but 3 networks"):
        converted(members=7)
    for options, words in (
        ({"tau": 1.5}, "tau is from -1 to 1; got 1.5"),
        ({"beta": -2}, "beta is from -1 to 1"),
        ({"clusters": "colour"}, "'depth', 'shape'"),
        ({"share": "all"}, "'none', 'layers', 'clusters'"),
        ({"bins": 0}, "bins is a whole number of at least 1"),
        ({"refine_at": 0}, "refine_at is a whole number of at least 1"),
        ({"budget": None}, "got None"),
    ):
        with pytest.raises(covey.CoveyError, match=words):
            SuperWeights(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preset", "recipe"),
    [
        ("homogeneous", "paper3-table5-homogeneous-cifar100"),
        ("heterogeneous", "paper3-table5-heterogeneous-cifar100"),
        ("multi-width", "paper3-figure1-width-cifar100"),
        ("multi-depth-width", "paper3-figure1-depth-width"),
        ("families", "paper3-table4"),
    ],
)
def test_presets_are_what_the_recipes_run(preset: str, recipe: str) -> None:
    names, method = PRESETS[preset]
    settings = recipes.read(recipe).at("full")
    assert "+".join(names) == settings.network.network
    assert method == settings.options


@pytest.mark.slow
def test_the_family_preset_converts() -> None:
    names, method = PRESETS["families"]
    networks = [zoo.create(name, classes=10) for name in names]
    x = torch.randn(2, 3, 32, 32)
    ensemble = covey.convert(networks, method, example=x).eval()
    mean = sum(p.numel() for net in networks for p in net.parameters()) / 2
    assert sum(p.numel() for p in ensemble.parameters()) <= mean
    assert ensemble(x).shape == (2, 2, 10)
