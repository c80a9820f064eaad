from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import blobs, mlp

import covey
from covey.errors import OptionError
from covey.seeds import generator_of
from covey.train.batches import PLANS, Share, Stream, check_plan, microbatches


def ensemble(members=3, method=covey.BatchEnsemble):
    return covey.convert(mlp(), method(members=members), example=torch.zeros(2, 6))


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 50), batch=st.integers(1, 20))
def test_every_sample_once_an_epoch(samples, batch):
    stream = Stream(samples, batch, seed=3)
    for epoch in range(2):
        seen = [stream[epoch * stream.per_epoch + i] for i in range(stream.per_epoch)]
        assert [e for e, _ in seen] == [epoch] * stream.per_epoch
        assert sorted(torch.cat([indices for _, indices in seen]).tolist()) == list(range(samples))


def test_minibatches_do_not_depend_on_what_was_read_before():
    forwards, backwards = Stream(20, 6, 0), Stream(20, 6, 0)
    first = [forwards[i][1] for i in range(12)]
    last = [backwards[i][1] for i in reversed(range(12))]
    assert all(torch.equal(a, b) for a, b in zip(first, reversed(last), strict=True))
    assert not torch.equal(torch.cat(first[:4]), torch.cat(first[4:8]))


def test_same_gives_all_members_one_minibatch():
    stream = Stream(20, 6, 0)
    (share,), used = PLANS["same"](stream, 2, ensemble())
    assert (share.members, used) == ((0, 1, 2), 1)
    assert torch.equal(share.indices, stream[2][1])


def test_split_deals_out_every_sample_once():
    shares, used = PLANS["split"](Stream(20, 8, 0), 0, ensemble())
    sizes = {k: share.indices.shape[1] for share in shares for k in share.members}
    assert (sizes, used) == ({0: 3, 1: 3, 2: 2}, 1)
    seen = torch.cat([share.indices.reshape(-1) for share in shares])
    assert sorted(seen.tolist()) == sorted(Stream(20, 8, 0)[0][1].tolist())


def test_independent_carries_a_cycle_over_the_end_of_an_epoch():
    stream = Stream(20, 6, 0)  # minibatches of 6, 6, 6, 2
    shares, used = PLANS["independent"](stream, 2, ensemble())
    assert used == 3
    seen = {k: (share.epoch, share.indices[i]) for share in shares for i, k in enumerate(share.members)}
    for k in range(3):
        epoch, indices = stream[2 + k]
        assert seen[k][0] == epoch
        assert torch.equal(seen[k][1], indices)


@settings(max_examples=20, deadline=None)
@given(samples=st.integers(2, 40), batch=st.integers(1, 15))
def test_shuffled_gives_every_member_all_samples_once_an_epoch(samples, batch):
    stream, net = Stream(samples, batch, 5), ensemble()
    for epoch in range(2):
        seen = {k: [] for k in range(3)}
        for i in range(stream.per_epoch):
            (share,), used = PLANS["shuffled"](stream, epoch * stream.per_epoch + i, net)
            assert (share.members, share.epoch, used) == ((0, 1, 2), epoch, 1)
            for k in range(3):
                seen[k] += share.indices[k].tolist()
        assert all(sorted(row) == list(range(samples)) for row in seen.values())


def test_shuffled_orders_are_the_members_own_and_do_not_depend_on_what_was_read_before():
    net, forwards, backwards = ensemble(), Stream(30, 8, 0), Stream(30, 8, 0)
    first = [PLANS["shuffled"](forwards, i, net)[0][0].indices for i in range(8)]
    last = [PLANS["shuffled"](backwards, i, net)[0][0].indices for i in reversed(range(8))]
    assert all(torch.equal(a, b) for a, b in zip(first, reversed(last), strict=True))
    epoch = torch.cat(first[:4], 1)
    assert not torch.equal(epoch[0], epoch[1])
    assert not torch.equal(epoch, torch.cat(first[4:], 1))
    # more members leave the orders of the others as they were
    more = PLANS["shuffled"](Stream(30, 8, 0), 0, ensemble(4))[0][0].indices
    assert torch.equal(more[:3], first[0])


def test_members_that_start_alike_come_apart_by_their_order_alone():
    """Paper 5's third source of diversity: equal weights, other batches."""
    recipe = covey.Recipe(epochs=1, batch=10, run="loop", plan="shuffled")
    copies = covey.Replicate(members=2, where="all", gamma=1.0)
    machine = covey.Machine(accelerator="cpu", progress=False)
    apart = covey.fit(mlp(), blobs(), recipe, method=copies, machine=machine).ensemble
    same = replace(recipe, plan="same")
    with pytest.warns(UserWarning, match="collapsed into one"):
        together = covey.fit(mlp(), blobs(), same, method=copies, machine=machine).ensemble
    assert not torch.equal(apart.member(0)[0].weight, apart.member(1)[0].weight)
    assert torch.equal(together.member(0)[0].weight, together.member(1)[0].weight)


def test_mimo_makes_its_own_batch_and_repeats_it():
    net = covey.convert(mlp(), covey.MIMO(members=3, repeats=2), example=torch.zeros(2, 6))
    (share,), _ = PLANS["same"](Stream(20, 6, 0), 1, net)
    assert share.indices.shape == (3, 12)
    for row in share.indices:
        assert sorted(row.tolist()) == sorted(Stream(20, 6, 0)[1][1].tolist() * 2)
    (again,), _ = PLANS["same"](Stream(20, 6, 0), 1, net)
    assert torch.equal(share.indices, again.indices)


def test_dropout_trains_one_draw():
    net = covey.convert(mlp(dropout=0.5), covey.MCDropout(members=5), example=torch.zeros(2, 6))
    (share,), _ = PLANS["same"](Stream(20, 6, 0), 1, net)
    assert share.members == (0,)


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 30), shards=st.integers(1, 5), chunk=st.integers(1, 4), own=st.booleans())
def test_pieces_cover_each_member_and_sample_once(samples, shards, chunk, own):
    indices = torch.arange(samples)
    share = Share((0, 1, 2), indices.expand(3, -1) if own else indices, 0)
    seen = {k: [] for k in range(3)}
    weight = dict.fromkeys(range(3), 0.0)
    for piece in microbatches([share], shards=range(shards), of=shards, chunk=chunk, key=(0, 1)):
        assert len(piece.members) <= chunk
        for i, k in enumerate(piece.members):
            seen[k] += (piece.indices[i] if own else piece.indices).tolist()
            weight[k] += piece.weight
    for k in range(3):
        assert sorted(seen[k]) == list(range(samples))
        assert weight[k] == pytest.approx(1)


def test_a_shards_random_numbers_do_not_depend_on_the_process():
    share = Share((0, 1), torch.arange(8), 0)
    alone = {
        p.indices[0].item(): p.seed
        for p in microbatches([share], shards=range(2), of=2, chunk=None, key=(0, 5))
    }
    second = next(microbatches([share], shards=[1], of=2, chunk=None, key=(0, 5)))
    assert alone[4] == second.seed != alone[0]
    assert generator_of(1, "a").initial_seed() != generator_of(1, "b").initial_seed()


def test_plans_that_cannot_work():
    stream = Stream(20, 6, 0)
    with pytest.raises(OptionError, match=r"plan 'split' gives each of the 3 members .* has 2 samples"):
        check_plan("split", stream, ensemble(), None)
    mimo = covey.convert(mlp(), covey.MIMO(members=2), example=torch.zeros(2, 6))
    with pytest.raises(OptionError, match=r"MIMO makes its members' batches itself.*plan 'independent'"):
        check_plan("independent", stream, mimo, None)
    with pytest.raises(OptionError, match=r"MIMO makes its members' batches itself.*member_chunk"):
        check_plan("same", stream, mimo, 1)
    with pytest.raises(OptionError, match="plan is one of same, split, independent, shuffled"):
        check_plan("all", stream, ensemble(), None)
