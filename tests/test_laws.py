"""The laws: every one holds for every method, every network and both runs, or stands in EXEMPT with its reason."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import covey
from covey.networks.anatomy import examine
from covey.networks.calls import pick
from law_networks import NETWORKS, call, network

M = 3
# With which options covey's own methods are under the laws; any other of the registry has its defaults.
OPTIONS: dict[str, covey.Method] = {
    "replicate": covey.Replicate(members=M, noise=0.2),
    "deep-ensemble": covey.DeepEnsemble(members=M),
    "multi-head": covey.MultiHead(members=M),
    "norm-ensemble": covey.NormEnsemble(members=M, noise=0.2),
    "batch-ensemble": covey.BatchEnsemble(members=M),
    "masksembles": covey.Masksembles(members=M),
    "mimo": covey.MIMO(members=M),
    "mc-dropout": covey.MCDropout(members=M, p=0.3),
    "low-rank": covey.LowRank(members=M, rank=2, base=1.0),
    "shared-low-rank": covey.SharedLowRank(members=M, rank=2),
    "packed": covey.Packed(members=M, alpha=M / 2, tolerance=0.6),
    "hypernetwork": covey.Hypernetwork(members=M, linear=True, budget=6.0),
    "mixture": covey.Mixture(members=M, linear=True, singles="bank", budget=6.0),
    "superweights": covey.SuperWeights(members=M, linear=True, budget=6.0),
    "shapeshifter": covey.ShapeShifter(members=M, linear=True, budget=6.0),
}
METHODS: dict[str, Any] = {
    name: OPTIONS.get(name) or kind(members=M)
    for name, kind in covey.METHODS.items()
    if kind.several_networks != "must"
}
# Options with which a method says that it keeps a network's weights, where those above do not.
KEEPING: dict[str, covey.Method] = {
    "replicate": covey.Replicate(members=M),
    "norm-ensemble": covey.NormEnsemble(members=M),
    "batch-ensemble": covey.BatchEnsemble(members=M, init="ones"),
    "mimo": covey.MIMO(members=M, init="copy"),
}
KEEPS = {name: KEEPING.get(name, method) for name, method in METHODS.items()}
KEEPS = {name: method for name, method in KEEPS.items() if method.keeps_weights}

# (method, law) -> reason. The only way out of a law; docs/laws.md prints this table.
EXEMPT: dict[tuple[str, str], str] = {
    ("mc-dropout", "member"): "a member is a random draw; member(k) is the network without dropout",
    ("mc-dropout", "isolation"): "members have no tensors of their own",
    ("mc-dropout", "runs"): "the two runs draw other random numbers",
    ("mc-dropout", "store"): "outputs are random; the stored tensors are compared instead",
    ("mc-dropout", "nested"): "members have no tensors of their own",
    ("mimo", "isolation"): "members mix in the shared body by design",
    ("mimo", "nested"): "members share one forward pass, there is no inner loop",
    ("masksembles", "nested"): "members have no tensors of their own",
    ("slimmable", "all"): "takes networks of several widths; its laws are in tests/methods/test_slimmable.py",
}
# (method, network) -> the error that convert() must raise instead.
IMPOSSIBLE: dict[tuple[str, str], str] = {
    ("norm-ensemble", "depthwise"): "no normalisation layer",
    ("mimo", "densenet"): "does something else with its input",
    ("mimo", "tied"): "share",
    ("tabm", "tied"): "first layer with a weight matrix that is not the head",
}

CASES = [(m, n) for m in METHODS for n in NETWORKS if (m, n) not in IMPOSSIBLE]
RUNS = ("loop", "batched")


def cases(law: str) -> Any:
    return pytest.mark.parametrize(("method", "name"), [c for c in CASES if (c[0], law) not in EXEMPT])


def ensemble_of(
    method: str, name: str, options: covey.Method | None = None, dtype: torch.dtype = torch.float64
) -> Any:
    """An ensemble of its own for each test: converted where options are given, else a copy of one that is kept.

    Converting takes most of a law's time; that a copy is as good is what the law about modules holds.
    """
    if options is None:
        ensemble = copy.deepcopy(_converted(method, name, dtype))
    else:
        ensemble = _convert(method, name, options, dtype)
    torch.manual_seed(1)  # what a test draws does not depend on who converted
    return ensemble


def _convert(method: str, name: str, options: covey.Method, dtype: torch.dtype) -> Any:
    law = NETWORKS[name]
    if method == "mc-dropout":
        options = covey.MCDropout(members=M, p=0.3, after=(law.drop,))
    # the laws try what conversion would try
    return covey.convert(network(name, dtype), options, example=law.x(4), output=law.output, check=False)


@functools.cache
def _converted(method: str, name: str, dtype: torch.dtype) -> Any:
    return _convert(method, name, METHODS[method], dtype)


def answer(net: nn.Module, name: str, x: Any) -> Tensor:
    return pick(call(net, x), NETWORKS[name].output)


def fix_run(ensemble: covey.Ensemble, name: str, run: str, per_member: bool = False) -> None:
    reached = per_member or not isinstance(ensemble.method, covey.MultiHead | covey.MIMO)
    if name == "lstm" and run == "batched" and reached:
        pytest.skip("nn.LSTM has no batching rule in torch; it runs in a loop")
    ensemble.run = run


def own_tensors(ensemble: covey.Ensemble) -> list[nn.Parameter]:
    """Member tensors, all with a leading axis M."""
    return [p for g in ensemble.param_groups(1.0) if g["members"] for p in g["params"]]


def apart(x: Any) -> Any:
    """An input of its own for each member."""
    return tree_map(lambda t: torch.stack([t.roll(k, 0) for k in range(M)]), x)


def same(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("method", "name"), IMPOSSIBLE)
def test_impossible_conversions_say_why(method: str, name: str) -> None:
    with pytest.raises(covey.CoveyError, match=IMPOSSIBLE[method, name]):
        ensemble_of(method, name)


@pytest.mark.parametrize("run", RUNS)
@cases("member")
def test_a_member_is_a_plain_network(method: str, name: str, run: str) -> None:
    ensemble = ensemble_of(method, name)
    fix_run(ensemble, name, run)
    x = NETWORKS[name].x(4)
    for mode in (False, True, True):
        ensemble.train(mode)
        plain = [ensemble.member(k).train(mode) for k in range(M)]
        outputs = call(ensemble, x)
        for k in range(M):
            assert not any("covey" in type(m).__module__ for m in plain[k].modules())
            same(outputs[k], answer(plain[k], name, x))
            after = dict(ensemble.member(k).named_buffers())
            for buffer, value in plain[k].named_buffers():
                same(after[buffer], value)


@pytest.mark.parametrize("run", RUNS)
@cases("isolation")
def test_members_do_not_touch_each_other(method: str, name: str, run: str) -> None:
    ensemble = ensemble_of(method, name).train()
    fix_run(ensemble, name, run, per_member=True)
    x = apart(NETWORKS[name].x(4))
    before = call(copy.deepcopy(ensemble), x, per_member=True)
    changed = copy.deepcopy(ensemble)
    with torch.no_grad():
        for parameter in own_tensors(changed):
            parameter[0] += torch.randn_like(parameter[0])
    other = tree_map(lambda t: torch.cat([t[:1].flip(1), t[1:]]), x)
    outputs = call(changed, other, per_member=True)
    assert not torch.allclose(outputs[0], before[0])
    same(outputs[1:], before[1:])
    own = own_tensors(changed)
    gradients = torch.autograd.grad(outputs[1].square().sum(), own, allow_unused=True) if own else ()
    for gradient in gradients:
        if gradient is not None:
            assert not gradient[0].any()
            assert not gradient[2].any()
    assert not own or any(g is not None and g[1].any() for g in gradients)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", KEEPS)
def test_pretrained_weights_are_kept(method: str, name: str) -> None:
    if (method, name) in IMPOSSIBLE:
        pytest.skip(f"impossible: {IMPOSSIBLE[method, name]}")
    x = NETWORKS[name].x(4)
    expected = answer(network(name).eval(), name, x)
    ensemble = ensemble_of(method, name, KEEPS[method]).eval()
    ensemble.run = "loop"
    for output in call(ensemble, x):
        same(output, expected)


@pytest.mark.parametrize("per_member", [False, True])
@pytest.mark.parametrize("mode", [False, True])
@cases("runs")
def test_both_runs_agree(method: str, name: str, mode: bool, per_member: bool) -> None:
    results = []
    x = NETWORKS[name].x(4)
    x = apart(x) if per_member else x
    for run in RUNS:
        ensemble = ensemble_of(method, name).train(mode)
        fix_run(ensemble, name, run, per_member and method != "mimo")
        outputs = call(ensemble, x, per_member=per_member)
        outputs.square().sum().backward()
        results.append((outputs, [p.grad for p in ensemble.parameters()], list(ensemble.buffers())))
    for a, b in zip(*results, strict=True):
        for left, right in zip(a, b, strict=True):
            assert (left is None) == (right is None)
            if left is not None:
                same(left, right, 1e-8)


ACTING = ("batch-ensemble", "tabm", "masksembles", "low-rank", "shared-low-rank")


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("method", "name"), [c for c in CASES if c[0] in ACTING])
def test_weights_that_act_do_what_made_ones_do(method: str, name: str, run: str) -> None:
    results = []
    x = apart(NETWORKS[name].x(4))
    for acting in (True, False):
        ensemble = ensemble_of(method, name).train()
        with torch.no_grad():
            for parameter in own_tensors(ensemble):  # a low-rank update of zeros would hide everything
                parameter += 0.1 * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
        fix_run(ensemble, name, run, per_member=True)
        ensemble.acting = acting
        outputs = call(ensemble, x, per_member=True)
        outputs.square().sum().backward()
        results.append([outputs, *(p.grad for p in ensemble.parameters()), *ensemble.buffers()])
    for left, right in zip(*results, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            same(left, right, 1e-8)


def test_every_method_whose_weights_act_is_under_the_law() -> None:
    found = [m for m in METHODS if any(part.acts for part in ensemble_of(m, "mlp").parts.values())]
    assert sorted(found) == sorted(ACTING)


@cases("gradient")
def test_every_parameter_gets_a_gradient_and_is_in_one_group(method: str, name: str) -> None:
    ensemble = ensemble_of(method, name).train()
    ensemble.run = "loop"
    call(ensemble, NETWORKS[name].x(4)).square().sum().backward()
    aux = {"resnet": ("aux",), "bert": ()}.get(name, ())
    for label, parameter in ensemble.named_parameters():
        if parameter.requires_grad and not any(part in label for part in aux):
            assert parameter.grad is not None, label
    grouped = [id(p) for g in ensemble.param_groups(0.1, 0.01) for p in g["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in ensemble.parameters() if p.requires_grad}


_LOADER = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
from law_networks import NETWORKS, call, network
import covey
for folder in sys.argv[2:]:
    name = folder.rpartition("/")[2]
    ensemble = covey.load(folder, network=network(name)).eval()
    x = torch.load(folder + "/../" + name + ".x", weights_only=True)
    out = call(ensemble, x)
    same = {n: t.double().sum().item() for n, t in ensemble.state_dict().items()}
    print(json.dumps([out.flatten().tolist(), same]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("methods", [list(METHODS)[::2], list(METHODS)[1::2]])
def test_a_fresh_process_loads_the_same_ensemble(methods: list[str], tmp_path: Path) -> None:
    """One process loads those of many methods, because starting it takes longer than loading."""
    chosen = [case for case in CASES if case[0] in methods]
    folders, expected = [], []
    for method, name in chosen:
        ensemble = ensemble_of(method, name).eval()
        ensemble.run = "loop"
        x = NETWORKS[name].x(3)
        folders.append(tmp_path / method / name)
        covey.save(ensemble, folders[-1])
        torch.save(x, tmp_path / method / f"{name}.x")
        sums = {n: t.double().sum().item() for n, t in ensemble.state_dict().items()}
        expected.append([call(ensemble, x).flatten().tolist(), sums])
    command = [sys.executable, "-c", _LOADER, str(Path(__file__).parent), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for case, line, (outputs, sums) in zip(chosen, done.stdout.splitlines(), expected, strict=True):
        loaded, loaded_sums = json.loads(line)
        assert loaded_sums == sums, case
        if (case[0], "store") not in EXEMPT:
            assert loaded == outputs, case


# Trainable parameters at half the hidden width, layer by layer. GroupNorm(2, 6) makes 3 channels 4 in the DenseNet.
HALF_WIDTH = {
    "mlp": 6 * 4 + 4 + 2 * 4 + 2 * (4 * 4 + 4),
    "convnet": 4 * 2 * 9 + 4 + 2 * 8 + 4 * 4 * 9 + 4 + 4 * 4 + 4,
    "resnet": 4 * 2 * 9 + 2 * (4 * 4 * 9 + 8) + (6 * 4 + 6 * 6) * 9 + 2 * 12 + 6 * 4 + 4 * 6 + 4 + 3 * 6 + 3,
    "densenet": (2 + 6 + 10) * 4 * 9 + 3 * 4 + 3 * 8 + 4 * 14 + 4,
    "depthwise": 4 * 2 + 4 + 4 * 9 + 4 + 4 * 2 * 4 + 4 + 4 * 4 + 4,
    "vit": 4 + 5 * 4 + 4 * 2 * 16 + 4 + 2 * 8 + 12 * 4 + 12 + 2 * (4 * 4 + 4) + 8 * 4 + 8 + 4 * 8 + 4,
    "tied": 11 * 4 + 4 * 4 * 3 + 4 + 8 + 11,
    "twice": 4 * 6 + 4 + 2 * (4 * 4 + 4) + 8,
    "lstm": 11 * 3 + 16 * (3 + 4 + 4 + 4) + 4 * 16 + 8 + 11 * 4 + 11,
    "bare": 6 * 4 + 4 + 1 + 8 + 4 * 4 + 4 * 4,
    "bert": (17 + 8 + 2) * 4 + 3 * 8 + 5 * (4 * 4 + 4) + 6 * 4 + 6 + 4 * 6 + 4 + 3 * 4 + 3,
}


def _closed_form(method: str, name: str) -> int:
    """The docstrings' formulas, from the network's own layers."""
    net = network(name)
    sizes = {n: p.numel() for n, p in net.named_parameters()}
    trainable = {n: p.numel() for n, p in net.named_parameters() if p.requires_grad}
    total, linear = sum(sizes.values()), (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
    norm_types = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)
    head = {
        "mlp": ["5"], "convnet": ["fc"], "resnet": ["fc"], "densenet": ["out"], "depthwise": ["fc"], "vit": ["head"],
        "tied": ["decoder", "embedding"], "twice": ["last"], "lstm": ["out"], "bert": ["classifier"], "bare": [],
    }[name]  # fmt: skip
    head_size = sum(s for n, s in sizes.items() if n.rpartition(".")[0] in head) or sizes.get("out", 0)
    if method in ("replicate", "deep-ensemble"):
        return total + (M - 1) * sum(trainable.values())
    if method == "multi-head":
        return total + (M - 1) * head_size
    norm_size = sum(p.numel() for m in net.modules() if isinstance(m, norm_types) for p in m.parameters())
    if method == "norm-ensemble":
        return total + (M - 1) * (head_size + norm_size)
    if method == "mimo":
        stem = {
            "mlp": "0.weight", "convnet": "body.0.weight", "resnet": "stem.weight",
            "depthwise": "expand.weight", "vit": "patch.weight", "twice": "first.weight", "lstm": "embedding.weight",
            "bare": "weight", "bert": "bert.embeddings.word_embeddings.weight",
        }[name]  # fmt: skip
        return total + (M - 1) * (sizes[stem] + head_size)
    if method in ("masksembles", "mc-dropout"):
        return total
    if method == "packed":
        return M * HALF_WIDTH[name] + sum(p.numel() // 2 for p in net.parameters() if not p.requires_grad)
    extra = sum((M - 1) * p.numel() for p in net.parameters() if p.ndim == 1 and p.requires_grad)
    seen = set()
    for module in net.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, linear) and id(weight) not in seen:
            seen.add(id(weight))
            ins = getattr(module, "in_features", None) or module.in_channels
            outs = getattr(module, "out_features", None) or module.out_channels
            extra += M * outs if (name, outs) == ("tied", 11) else M * (ins + outs)
        elif isinstance(module, nn.Embedding):
            seen.add(id(weight))
            extra += M * module.embedding_dim
        elif isinstance(module, nn.MultiheadAttention):
            extra += M * (module.embed_dim + 3 * module.embed_dim)
        elif isinstance(module, nn.LSTM):
            extra += M * sum(sum(p.shape) for n, p in module.named_parameters() if "weight" in n)
    if name == "bare":
        extra += M * (6 + 8 + 8 + 4)
    return total + extra


@cases("count")
def test_the_parameter_count_is_the_closed_form(method: str, name: str) -> None:
    ensemble = ensemble_of(method, name)
    count = sum(p.numel() for p in ensemble.parameters())
    assert ensemble.coverage.total == count
    assert {row.name for row in ensemble.coverage.rows} >= dict(network(name).named_parameters()).keys() or (
        method == "mc-dropout"
    )
    law = NETWORKS[name]
    body = examine(network(name), example=law.x(4), output=law.output)
    assert ensemble.method.count([body], ensemble.layout) == count
    if method in ("hypernetwork", "mixture", "superweights", "shapeshifter"):
        # closed forms in their own tests; here, never above the budget
        assert count <= METHODS[method].budget * sum(p.numel() for p in network(name).parameters())
    elif method in OPTIONS and method not in (
        "tabm",
        "low-rank",
        "shared-low-rank",
    ):  # those in their own tests
        # written out here as well, so that no count is compared with itself
        assert count == _closed_form(method, name)


@pytest.mark.parametrize("run", RUNS)
@cases("batch")
def test_any_batch_size_works(method: str, name: str, run: str) -> None:
    ensemble = ensemble_of(method, name).eval()
    fix_run(ensemble, name, run)
    full = NETWORKS[name].x(7)
    whole = call(ensemble, full)
    assert whole.shape[:2] == (M, 7)
    for batch in (1, 4):
        part = tree_map(lambda t, batch=batch: t[:batch], full)
        outputs = call(ensemble, part)
        assert outputs.shape == (M, batch, *whole.shape[2:])
        if method != "mc-dropout":
            same(outputs, whole[:, :batch])


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_raises_as_the_network_does(method: str) -> None:
    plain, x = network("twice").train(), NETWORKS["twice"].x(1)
    with pytest.raises(ValueError, match="Expected more than 1 value") as expected:
        plain(x)
    ensemble = ensemble_of(method, "twice").train()
    with pytest.raises(ValueError, match="Expected more than 1 value") as got:
        ensemble(x)
    words = str(expected.value)
    assert str(got.value) == (words.replace("[1, 8]", "[1, 4]") if method == "packed" else words)


@cases("module")
def test_it_is_a_module_like_any_other(method: str, name: str) -> None:
    ensemble = ensemble_of(method, name, METHODS[method]).eval()
    ensemble.run = "loop"
    x = NETWORKS[name].x(3)

    def outputs(net: nn.Module) -> Tensor:
        torch.manual_seed(1)
        return call(net, x)

    expected = outputs(ensemble)
    twin = copy.deepcopy(ensemble)
    assert torch.equal(outputs(twin), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    assert torch.equal(outputs(ensemble), expected)  # the copy shares no memory
    twin.load_state_dict(ensemble.state_dict())
    assert torch.equal(outputs(twin), expected)
    assert twin.train().training
    assert not twin.eval().training
    single = twin.to(torch.float32)
    assert all(p.dtype == torch.float32 for p in single.parameters())
    low = tree_map(lambda t: t.float() if t.is_floating_point() else t, x)
    torch.manual_seed(1)
    out = call(single, low)
    assert out.dtype == torch.float32
    if method != "mc-dropout":
        same(out.double(), expected, 2e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised inside dynamo
@pytest.mark.parametrize(("name", "mode"), [("mlp", True), ("convnet", False)])
@pytest.mark.parametrize("method", METHODS)
def test_it_compiles(method: str, name: str, mode: bool) -> None:
    """Outputs, and in train mode gradients, of the compiled ensemble are those of the ensemble."""
    ensemble = ensemble_of(method, name).train(mode)
    ensemble.run = "loop"
    x = NETWORKS[name].x(3)
    torch._dynamo.reset()
    compiled = torch.compile(ensemble, backend="aot_eager")
    found = []
    for way in (compiled, ensemble):
        ensemble.zero_grad()
        torch.manual_seed(1)
        outputs = way(x)
        if mode:
            outputs.square().sum().backward()
        gradients = [p.grad for p in ensemble.parameters() if p.requires_grad]
        assert not mode or all(gradient is not None for gradient in gradients)
        found.append([outputs, *gradients] if mode else [outputs])
    for ours, theirs in zip(*found, strict=True):
        if method == "mc-dropout":  # draws other masks
            assert ours.shape == theirs.shape
        else:
            same(ours, theirs)


def _inner_loop(ensemble: covey.Ensemble, x: Tensor, make: Any, steps: int) -> None:
    """Algorithm 1 as written: step member k's tensors at once, then the shared ones on what was accumulated."""
    groups = ensemble.param_groups(0.05, 0.01)
    shared = [g for g in groups if not g["members"]]
    rows = [
        [{**g, "params": [nn.Parameter(p.detach()[k]) for p in g["params"]]} for g in groups if g["members"]]
        for k in range(M)
    ]
    own = [make(r) for r in rows]
    base = make(shared) if shared else None
    for _ in range(steps):
        ensemble.zero_grad()
        for k in range(M):
            call(ensemble, tree_map(lambda t, k=k: t[k], x), members=[k]).square().mean().backward()
            for group, leaf_group in zip([g for g in groups if g["members"]], rows[k], strict=True):
                for parameter, leaf in zip(group["params"], leaf_group["params"], strict=True):
                    leaf.grad = None if parameter.grad is None else parameter.grad[k].clone()
            own[k].step()  # the rows share memory with the stacked tensors
        if base is not None:
            base.step()


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@cases("nested")
def test_one_step_is_the_sequential_inner_loop(method: str, name: str, optimiser: str) -> None:
    make = {
        "sgd": lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9, nesterov=True),
        "adam": lambda g: torch.optim.AdamW(g, lr=0.01, eps=1e-3),  # a gradient of 0 stays noise
    }[optimiser]
    x = apart(NETWORKS[name].x(4))
    at_once, in_turn = ensemble_of(method, name).train(), ensemble_of(method, name).train()
    at_once.run = in_turn.run = "loop"
    step = make(at_once.param_groups(0.05, 0.01))
    for _ in range(3):
        at_once.zero_grad()
        outputs = call(at_once, x, per_member=True)
        sum(output.square().mean() for output in outputs).backward()
        step.step()
    _inner_loop(in_turn, x, make, 3)
    for (label, a), (_, b) in zip(at_once.named_parameters(), in_turn.named_parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-9, atol=1e-9, msg=lambda text, label=label: f"{label}: {text}"
        )


EXEMPTIONS_PAGE = Path(__file__).parents[1] / "docs" / "laws.md"


def test_every_method_is_under_the_laws() -> None:
    assert covey.METHODS.keys() == METHODS.keys() | {m for m, law in EXEMPT if law == "all"}


def test_the_exemptions_are_printed_in_the_docs() -> None:
    page = EXEMPTIONS_PAGE.read_text()
    for (method, law), reason in EXEMPT.items():
        assert f"| {method} | {law} | {reason} |" in page
