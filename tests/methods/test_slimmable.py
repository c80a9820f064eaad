from __future__ import annotations

import copy

import pytest
import torch
from test_superweights import Net, X, Y

import covey


def _nets() -> list[Net]:
    torch.manual_seed(0)
    return [Net(4, 1).double(), Net(8, 1).double(), Net(6, 1).double()]


def test_narrow_members_are_the_leading_channels_of_the_widest() -> None:
    networks = _nets()
    ensemble = covey.convert(networks, covey.Slimmable(), example=X).train()
    for k in range(3):
        made = ensemble.tensors(k)
        for name, parameter in networks[k].named_parameters():
            wide = networks[1].get_parameter(name)
            corner = wide[tuple(slice(n) for n in parameter.shape)]
            assert torch.equal(made[name], parameter if "norm" in name else corner)
        torch.testing.assert_close(ensemble.eval()(X)[k], ensemble.member(k)(X))
    widest = sum(p.numel() for p in networks[1].parameters())
    others = 2 * 2 * (4 + 6)  # scales and shifts of two norms, for widths 4 and 6
    assert sum(p.numel() for p in ensemble.parameters()) == widest + others == ensemble.coverage.total


def test_universally_slimmable_shares_norms_but_not_statistics(tmp_path) -> None:
    networks = _nets()
    ensemble = covey.convert(networks, covey.Slimmable(norms="shared", widths=2), example=X).train()
    assert sum(p.numel() for p in ensemble.parameters()) == sum(p.numel() for p in networks[1].parameters())
    ensemble.loss(X, Y).backward()
    means = [dict(ensemble.member(k).named_buffers())["norms.0.running_mean"] for k in range(3)]
    assert means[0].any()
    assert means[1].any()
    assert not means[2].any()  # the width in the middle was not drawn
    ensemble.run = (
        "loop"  # each would else measure which way is the fastest, and ways differ in the last bits
    )
    covey.save(ensemble.eval(), tmp_path)
    with torch.no_grad():
        assert torch.equal(covey.load(tmp_path, network=_nets())(X), ensemble(X))


@pytest.mark.parametrize("norms", ["switch", "shared"])
def test_the_laws_that_apply(norms) -> None:
    ensemble = covey.convert(_nets(), covey.Slimmable(norms=norms), example=X).train()
    ensemble.run = "loop"  # each copy would else measure which way is the fastest
    plain = [ensemble.member(k) for k in range(3)]
    outputs = ensemble(X)
    for k in range(3):  # a member is a plain network, running statistics included
        torch.testing.assert_close(outputs[k], plain[k](X), rtol=1e-9, atol=1e-9)
        after = dict(ensemble.member(k).named_buffers())
        for name, buffer in plain[k].named_buffers():
            torch.testing.assert_close(after[name], buffer, rtol=1e-9, atol=1e-9)
    outputs.square().sum().backward()
    assert all(p.grad is not None for p in ensemble.parameters())
    grouped = [id(p) for g in ensemble.param_groups(0.1) for p in g["params"]]
    assert sorted(grouped) == sorted(map(id, ensemble.parameters()))
    twin = copy.deepcopy(ensemble)
    assert torch.equal(twin.eval()(X), ensemble.eval()(X))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.equal(twin(X), ensemble(X))
    for batch in (1, 5):  # any batch size
        torch.testing.assert_close(ensemble(X[:batch]), ensemble(X)[:, :batch], rtol=1e-9, atol=1e-9)


def test_a_step_draws_the_widest_the_narrowest_and_others() -> None:
    ensemble = covey.convert(
        [Net(w, 1) for w in (4, 8, 5, 7, 6)], covey.Slimmable(widths=4), example=X.float()
    )
    drawn = [
        ensemble.method.share_out(ensemble.layout, 4, torch.Generator().manual_seed(i)).members
        for i in range(20)
    ]
    assert all(len(set(each)) == 4 and each[0] == 1 and each[-1] == 0 for each in drawn)
    assert {k for each in drawn for k in each} == set(range(5))
    every = covey.Slimmable()
    assert every.share_out(ensemble.layout, 4).members == (1, 3, 4, 2, 0)


def test_bad_input() -> None:
    with pytest.raises(covey.CoveyError, match="several networks"):
        covey.convert(Net(4, 1), covey.Slimmable(), example=X.float())
    with pytest.raises(covey.CoveyError, match=r"'convs.2.weight' is missing"):
        covey.convert([Net(8, 2), Net(4, 1)], covey.Slimmable(), example=X.float())
    for options, words in (({"norms": "no"}, "one of 'switch', 'shared'"), ({"widths": 1}, "at least 2")):
        with pytest.raises(covey.CoveyError, match=words):
            covey.Slimmable(**options)  # type: ignore[arg-type]
