"""Text from ensembles of language models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_transformers import SIZES, WORDS, bert, ensemble, gpt2, llama, stirred, transformers
from torch import Tensor, nn

import covey
from covey.errors import DataError, OptionError
from covey.hf import generate

PROMPT = torch.tensor([[0, 0, 5, 7], [4, 9, 3, 11]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def speaker(kind: Any = llama) -> covey.Ensemble:
    method = covey.LowRank(members=3, rank=4, own=("head",) if kind is llama else ())
    return stirred(ensemble(kind(), method), 1.0).eval()


@torch.no_grad()
def by_hand(made: covey.Ensemble, tokens: Tensor, steps: int) -> list[tuple[int, float, float, float]]:
    """One row at a time, without padding or cache, from plain networks: token, log-probability, both uncertainties."""
    found = []
    networks = [made.member(k).eval() for k in range(made.members)]
    for _ in range(steps):
        probs = torch.stack([net(input_ids=tokens[None]).logits[0, -1].softmax(-1) for net in networks])
        mean = probs.mean(0)
        entropy = -(mean * mean.log()).sum()
        expected = -(probs * probs.log()).sum(-1).mean()
        chosen = int(mean.argmax())
        found.append((chosen, float(mean[chosen].log()), float(entropy), float(entropy - expected)))
        if chosen == 2:
            break
        tokens = torch.cat([tokens, torch.tensor([chosen])])
    return found


@pytest.mark.parametrize("kind", [llama, gpt2])
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_is_the_mean_of_plain_networks(kind: Any, use_cache: bool) -> None:
    made = speaker(kind)
    found = generate(made, PROMPT, attention_mask=MASK, max_new_tokens=8, use_cache=use_cache, pad_token_id=0)
    for row in range(2):
        expected = by_hand(made, PROMPT[row][MASK[row].bool()], 8)
        length = int(found.lengths[row])
        assert found.tokens[row, :length].tolist() == [token for token, *_ in expected]
        numbers = torch.stack([found.log_probs, found.entropy, found.mutual_information], -1)[row]
        torch.testing.assert_close(
            numbers[:length], torch.tensor([rest for _, *rest in expected]), rtol=1e-3, atol=1e-4
        )
        assert not numbers[length:].any()
        assert not found.tokens[row, length:].any()
    assert made.runs == {"train": "loop", "eval": "loop"}


def test_a_row_ends_at_its_end() -> None:
    made = speaker()
    free = generate(made, PROMPT, attention_mask=MASK, max_new_tokens=8, eos_token_id=WORDS + 1)
    end = int(free.tokens[0, 2])
    found = generate(made, PROMPT, attention_mask=MASK, max_new_tokens=8, eos_token_id=[end, WORDS + 1])
    first = free.tokens[0].tolist().index(end)
    assert int(found.lengths[0]) == first + 1
    assert int(found.tokens[0, first]) == end
    alone = generate(made, PROMPT[:1, 2:], max_new_tokens=8, eos_token_id=end)
    assert alone.tokens.shape == (1, first + 1)  # stops when all rows have


def test_draws_are_seeded_and_cut() -> None:
    made = speaker()
    state = torch.get_rng_state()
    options = dict(attention_mask=MASK, max_new_tokens=10, sample=True, eos_token_id=WORDS + 1)
    one, same, other = (generate(made, PROMPT, seed=seed, **options) for seed in (1, 1, 2))
    assert torch.equal(one.tokens, same.tokens)
    assert not torch.equal(one.tokens, other.tokens)
    assert torch.equal(state, torch.get_rng_state())
    greedy = generate(made, PROMPT, attention_mask=MASK, max_new_tokens=10, eos_token_id=WORDS + 1)
    for cut in (dict(top_k=1), dict(top_p=1e-6), dict(temperature=1e-4)):
        assert torch.equal(generate(made, PROMPT, **options, **cut).tokens, greedy.tokens), cut


def test_draws_have_the_cut_probabilities() -> None:
    made = speaker()
    row = PROMPT[1:]
    with torch.no_grad():
        mean = made(input_ids=row)[:, 0, -1].softmax(-1).mean(0)
    kept = mean.square()  # temperature 1/2
    kept[kept.argsort(descending=True)[3:]] = 0
    kept /= kept.sum()
    found = generate(made, row.expand(4000, -1), max_new_tokens=1, sample=True, temperature=0.5, top_k=3)
    shares = torch.bincount(found.tokens[:, 0], minlength=WORDS) / 4000
    torch.testing.assert_close(shares, kept, rtol=0, atol=0.03)
    nucleus = generate(made, row.expand(500, -1), max_new_tokens=1, sample=True, top_p=0.5).tokens
    ordered, order = mean.sort(descending=True)
    allowed = order[: int((ordered.cumsum(0) < 0.5).sum()) + 1]
    assert set(nucleus.flatten().tolist()) == set(allowed.tolist())


def words(count: int) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w3")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0", eos_token="w2")


def test_text_with_a_tokenizer() -> None:
    made, tokenizer = speaker(), words(WORDS)
    found = generate(made, ["w5 w7", "w4 w9 w3 w11"], tokenizer=tokenizer, max_new_tokens=4)
    same = generate(made, PROMPT, attention_mask=MASK, max_new_tokens=4)
    assert torch.equal(found.tokens, same.tokens)
    kept = [f"w{t}" for t in same.tokens[1, : same.lengths[1]].tolist() if t not in (0, 2)]
    assert found.texts is not None
    assert found.texts[1].split() == kept
    with pytest.raises(DataError, match="tokenizer does not fit: it has 40 tokens.*embedding 20"):
        generate(made, "w5", tokenizer=words(40))
    with pytest.raises(OptionError, match="text needs a tokenizer"):
        generate(made, "w5")


def test_a_tokenizer_without_padding() -> None:
    made, tokenizer = speaker(), words(WORDS)
    padded = generate(made, ["w5 w7", "w4 w9 w3 w11"], tokenizer=tokenizer, max_new_tokens=4)
    tokenizer.pad_token = None
    found = generate(made, ["w5 w7", "w4 w9 w3 w11"], tokenizer=tokenizer, max_new_tokens=4)
    assert torch.equal(found.tokens, padded.tokens)
    assert found.texts == padded.texts


class Bag(nn.Module):
    """One answer for a whole text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.words(input_ids).mean(1))


def test_tokens_may_be_lists() -> None:
    made = speaker()
    by_lists = generate(made, PROMPT.tolist(), attention_mask=MASK.tolist(), max_new_tokens=3)
    assert torch.equal(by_lists.tokens, generate(made, PROMPT, attention_mask=MASK, max_new_tokens=3).tokens)


def test_what_it_refuses() -> None:
    made = speaker()
    with pytest.raises(DataError, match="padded on the right.*pad on the left"):
        generate(made, PROMPT, attention_mask=MASK.flip(1))
    with pytest.raises(DataError, match="token 33; the network's embedding has tokens 0 to 19"):
        generate(made, torch.tensor([[33]]))
    with pytest.raises(DataError, match=r"token numbers \(rows, tokens\).*shape \(4,\)"):
        generate(made, PROMPT[0])
    with pytest.raises(DataError, match="in rows of one length; pad shorter ones on the left"):
        generate(made, [[1, 2], [3]])
    with pytest.raises(DataError, match="the prompt is text, or token numbers"):
        generate(made, None)
    with pytest.raises(OptionError, match="44 tokens, and the network has positions for 32"):
        generate(made, PROMPT, max_new_tokens=40)
    with pytest.raises(OptionError, match="for draws: set sample=True"):
        generate(made, PROMPT, top_k=3)
    with pytest.raises(OptionError, match="top_p is a probability above 0"):
        generate(made, PROMPT, sample=True, top_p=0.0)
    with pytest.raises(OptionError, match="top_p is a probability above 0"):
        generate(made, PROMPT, sample=True, top_p="0.5")
    with pytest.raises(OptionError, match="eos_token_id is the number of a token; got '2'"):
        generate(made, PROMPT, eos_token_id="2")
    with pytest.raises(OptionError, match="pad_token_id is the number of a token"):
        generate(made, PROMPT, pad_token_id=[0])
    with pytest.raises(OptionError, match="tokenizer is one of transformers'; got int"):
        generate(made, PROMPT, tokenizer=5)
    with pytest.raises(OptionError, match="seed is a whole number"):
        generate(made, PROMPT, sample=True, seed="a")
    with pytest.raises(DataError, match="at least one"):
        generate(made, [], tokenizer=words(WORDS))
    with pytest.raises(DataError, match="text 1 has no tokens"):
        generate(made, ["w3", ""], tokenizer=words(WORDS))
    with pytest.raises(DataError, match=r"got torch.bool of shape \(2, 4\)"):
        generate(made, PROMPT > 3)
    with pytest.raises(OptionError, match="BertForSequenceClassification does not generate text"):
        generate(ensemble(bert()), PROMPT)
    with pytest.raises(OptionError, match="a causal language model gives logits"):
        generate(ensemble(Bag(), covey.DeepEnsemble(members=2)), PROMPT)


def roberta() -> nn.Module:
    """Its positions begin after its padding token's number, and it counts its tokens itself."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        **{**SIZES, "max_position_embeddings": 40}, is_decoder=True, pad_token_id=0, initializer_range=0.4
    )
    return transformers.RobertaForCausalLM(config)


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_network_that_counts_its_positions_otherwise(use_cache: bool) -> None:
    made = speaker(roberta)
    found = generate(made, PROMPT[1:], max_new_tokens=6, use_cache=use_cache, eos_token_id=2)
    expected = by_hand(made, PROMPT[1], 6)
    assert found.tokens[0].tolist() == [token for token, *_ in expected]
    log_probs = torch.tensor([log_prob for _, log_prob, *_ in expected])
    torch.testing.assert_close(found.log_probs[0], log_probs, rtol=1e-3, atol=1e-4)
    with pytest.raises(OptionError, match="does not pass over padding: row 0 alone"):
        generate(made, PROMPT, attention_mask=MASK, max_new_tokens=2, use_cache=use_cache)


def test_an_encoder_with_a_decoder() -> None:
    torch.manual_seed(0)
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2)
    config = transformers.BartConfig(vocab_size=WORDS, **sizes, **heads)
    made = ensemble(transformers.BartForConditionalGeneration(config))
    with pytest.raises(OptionError, match="has an encoder and a decoder"):
        generate(made, PROMPT)


def test_what_is_no_ensemble_of_language_models() -> None:
    with pytest.raises(OptionError, match="expected an ensemble.*got LlamaForCausalLM"):
        generate(llama(), PROMPT)  # type: ignore[arg-type]
    plain = covey.convert(nn.Linear(4, 3), covey.DeepEnsemble(members=2), example=torch.zeros(2, 4))
    with pytest.raises(OptionError, match="Linear takes no input_ids"):
        generate(plain, PROMPT)
    with pytest.raises(OptionError, match="pad_token_id is 1000, and the network has tokens 0 to 19"):
        generate(speaker(), PROMPT, attention_mask=MASK, pad_token_id=1000)
