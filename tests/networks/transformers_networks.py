"""Networks of transformers, built from tiny configurations; nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from catalogue import BATCH, CLASSES, Kind, Network, images, importable, sequences, tokens
from torch import Tensor, nn

_WORDS = 24
_NLP: Kind = "transformer"
_VIT: Kind = "vision transformer"

# sizes under the names that most configurations have
_USUAL = dict(
    vocab_size=_WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
)
_TEXT = dict(**_USUAL, max_position_embeddings=16, num_labels=CLASSES, pad_token_id=0)
_DECODER = dict(**_TEXT, bos_token_id=1, eos_token_id=2)
_PICTURE = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, num_labels=CLASSES
)
_SPEECH = dict(conv_dim=(16, 16), conv_stride=(4, 2), conv_kernel=(8, 3), num_feat_extract_layers=2)

# model, sizes
_SENTENCES: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": _TEXT,
    "RobertaForSequenceClassification": _TEXT,
    "DistilBertForSequenceClassification": dict(
        vocab_size=_WORDS,
        dim=16,
        n_layers=2,
        n_heads=4,
        hidden_dim=32,
        max_position_embeddings=16,
        num_labels=CLASSES,
    ),
    "AlbertForSequenceClassification": dict(_TEXT, embedding_size=8, num_hidden_groups=1),
    "ElectraForSequenceClassification": dict(_TEXT, embedding_size=8),
    "DebertaV2ForSequenceClassification": dict(
        _TEXT, relative_attention=True, position_buckets=4, pos_att_type=["p2c", "c2p"]
    ),
    "MPNetForSequenceClassification": _TEXT,
    "MobileBertForSequenceClassification": dict(
        _TEXT, embedding_size=8, true_hidden_size=8, intra_bottleneck_size=8, num_feedforward_networks=2
    ),
    "RoFormerForSequenceClassification": dict(_TEXT, embedding_size=16),
    "LongformerForSequenceClassification": dict(_TEXT, attention_window=4, max_position_embeddings=20),
    "FNetForSequenceClassification": dict(_TEXT, tpu_short_seq_length=8),
    "FunnelForSequenceClassification": dict(
        vocab_size=_WORDS,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        d_model=16,
        n_head=4,
        d_head=4,
        d_inner=32,
        num_labels=CLASSES,
    ),
    "XLNetForSequenceClassification": dict(
        vocab_size=_WORDS,
        d_model=16,
        n_layer=2,
        n_head=4,
        d_inner=32,
        num_labels=CLASSES,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "ModernBertForSequenceClassification": dict(_DECODER, cls_token_id=1, sep_token_id=2),
}
_LANGUAGE: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": dict(
        vocab_size=_WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    ),
    "GPTNeoForCausalLM": dict(
        vocab_size=_WORDS,
        max_position_embeddings=16,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        intermediate_size=32,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "GPTNeoXForCausalLM": _DECODER,
    "OPTForCausalLM": dict(
        vocab_size=_WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=32,
        max_position_embeddings=16,
        word_embed_proj_dim=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "BloomForCausalLM": dict(
        vocab_size=_WORDS, hidden_size=16, n_layer=2, n_head=4, pad_token_id=0, bos_token_id=1, eos_token_id=2
    ),
    "LlamaForCausalLM": dict(_DECODER, num_key_value_heads=2),
    "MistralForCausalLM": dict(_DECODER, num_key_value_heads=2, sliding_window=4),
    "GemmaForCausalLM": dict(_DECODER, num_key_value_heads=1, head_dim=4),
    "PhiForCausalLM": _DECODER,
    "Qwen2ForCausalLM": dict(_DECODER, num_key_value_heads=2),
    "FalconForCausalLM": dict(
        vocab_size=_WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_hidden_size=32,
        alibi=False,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "RwkvForCausalLM": dict(
        vocab_size=_WORDS, hidden_size=16, attention_hidden_size=16, num_hidden_layers=2, intermediate_size=32
    ),
    "MambaForCausalLM": dict(
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=2, state_size=4, use_mambapy=False
    ),
}
_TRANSLATION: dict[str, dict[str, Any]] = {
    "T5ForConditionalGeneration": dict(
        vocab_size=_WORDS,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=1,
        num_heads=4,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    ),
    "BartForConditionalGeneration": dict(
        vocab_size=_WORDS,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    ),
    "MarianMTModel": dict(
        vocab_size=_WORDS,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=2,
    ),
}
_IMAGES: dict[str, tuple[int, dict[str, Any]]] = {
    "ViTForImageClassification": (16, dict(_PICTURE, image_size=16, patch_size=4)),
    "DeiTForImageClassification": (16, dict(_PICTURE, image_size=16, patch_size=4)),
    "BeitForImageClassification": (
        16,
        dict(_PICTURE, image_size=16, patch_size=4, use_relative_position_bias=True),
    ),
    "CLIPForImageClassification": (
        16,
        dict(vision_config=dict(_PICTURE, image_size=16, patch_size=4), num_labels=CLASSES),
    ),
    "SwinForImageClassification": (
        32,
        dict(
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 4],
            window_size=4,
            num_labels=CLASSES,
        ),
    ),
    "ConvNextForImageClassification": (
        32,
        dict(num_stages=2, hidden_sizes=[16, 32], depths=[1, 1], num_labels=CLASSES),
    ),
    "SegformerForImageClassification": (
        32,
        dict(
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
            num_labels=CLASSES,
        ),
    ),
    "PoolFormerForImageClassification": (
        32,
        dict(
            depths=[1, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[7, 3],
            strides=[4, 2],
            padding=[2, 1],
            num_encoder_blocks=2,
            num_labels=CLASSES,
        ),
    ),
    "HieraForImageClassification": (
        32,
        dict(
            image_size=[32, 32],
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 4],
            mlp_ratio=2.0,
            query_stride=[2, 2],
            num_query_pool=1,
            masked_unit_size=[4, 4],
            masked_unit_attention=[True, False],
            patch_size=[3, 3],
            patch_stride=[2, 2],
            patch_padding=[1, 1],
            num_labels=CLASSES,
        ),
    ),
    "ResNetForImageClassification": (
        32,
        dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=CLASSES),
    ),
}
_SPOKEN: dict[str, dict[str, Any]] = {
    "Wav2Vec2ForSequenceClassification": dict(
        _PICTURE,
        **_SPEECH,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        mask_time_prob=0.0,
    ),
    "HubertForSequenceClassification": dict(
        _PICTURE,
        **_SPEECH,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        mask_time_prob=0.0,
    ),
}
_LATENT = dict(q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4)
_ROUTED = dict(num_experts_per_tok=2, moe_intermediate_size=16)
# their products of groups of rows are not for float64
_EXPERTS: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": dict(_DECODER, **_ROUTED, num_key_value_heads=2, num_local_experts=4),
    "GptOssForCausalLM": dict(
        _DECODER, **_ROUTED, num_key_value_heads=2, num_local_experts=4, head_dim=4, sliding_window=4
    ),
    "DeepseekV2ForCausalLM": dict(
        _DECODER,
        **_LATENT,
        **_ROUTED,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
}
# runs its layers again in the backward pass
_REVERSIBLE: dict[str, dict[str, Any]] = {
    "ReformerForMaskedLM": dict(
        vocab_size=_WORDS,
        hidden_size=16,
        num_attention_heads=2,
        attention_head_size=8,
        feed_forward_size=32,
        axial_pos_embds=False,
        max_position_embeddings=16,
        attn_layers=["local", "lsh"],
        local_attn_chunk_length=4,
        lsh_attn_chunk_length=4,
        num_buckets=2,
        is_decoder=False,
        hash_seed=0,
    ),
}
_SERIES: dict[str, dict[str, Any]] = {
    "PatchTSTForPrediction": dict(
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        d_model=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        ffn_dim=32,
        prediction_length=4,
    ),
}
_CONVOLUTIONAL = ("ConvNext", "PoolFormer", "ResNet")


def networks() -> list[Network]:
    """All of them, or none where transformers cannot be imported."""
    if not importable("transformers"):
        return []
    found = []
    for model, sizes in {**_SENTENCES, **_LANGUAGE}.items():
        kind: Kind = "recurrent" if model.startswith(("Rwkv", "Mamba")) else _NLP
        found.append(_network(model, kind, sizes, _named("input_ids", tokens(8, _WORDS))))
    for model, sizes in _REVERSIBLE.items():
        found.append(_network(model, _NLP, sizes, _named("input_ids", tokens(8, _WORDS))))
    for model, sizes in _EXPERTS.items():
        coarse = _network(model, _NLP, sizes, _named("input_ids", tokens(8, _WORDS)))
        found.append(replace(coarse, dtype=torch.float32))
    for model, sizes in _SERIES.items():
        series = _network(model, _NLP, sizes, _named("past_values", sequences(16, 2)))
        found.append(replace(series, output="prediction_outputs"))
    for model, sizes in _TRANSLATION.items():
        found.append(_network(model, _NLP, sizes, _pair_of_sentences))
    for model, (size, sizes) in _IMAGES.items():
        kind = "convolutional" if model.startswith(_CONVOLUTIONAL) else _VIT
        found.append(_network(model, kind, sizes, _named("pixel_values", images(size))))
    for model, sizes in _SPOKEN.items():
        found.append(_network(model, _NLP, sizes, _named("input_values", _sound)))
    whisper = dict(
        vocab_size=_WORDS,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        num_labels=CLASSES,
        classifier_proj_size=8,
    )
    found.append(_network("WhisperForAudioClassification", _NLP, whisper, _named("input_features", _spectra)))
    found.append(
        _network(
            "BertForSequenceClassification",
            _NLP,
            _TEXT,
            _padded_sentences,
            "BertForSequenceClassification, padded",
        )
    )
    return found


def _network(
    model: str, kind: Kind, sizes: dict[str, Any], inputs: Callable[[], Any], label: str = ""
) -> Network:
    build = functools.partial(_create, model, sizes)
    return Network(f"transformers {label or model}", kind, "transformers", build, inputs, output="logits")


def _create(model: str, sizes: dict[str, Any]) -> nn.Module:
    import transformers

    kind = getattr(transformers, model)
    return kind(kind.config_class(**sizes))


def _named(argument: str, inputs: Callable[[], Tensor]) -> Callable[[], dict[str, Tensor]]:
    return lambda: {argument: inputs()}


def _pair_of_sentences() -> dict[str, Tensor]:
    return {"input_ids": tokens(6, _WORDS)(), "decoder_input_ids": tokens(5, _WORDS)()}


def _padded_sentences() -> dict[str, Tensor]:
    mask = torch.ones(BATCH, 8, dtype=torch.long)
    mask[1:, 5:] = 0
    return {"input_ids": tokens(8, _WORDS)(), "attention_mask": mask}


def _sound() -> Tensor:
    return torch.randn(BATCH, 160)


def _spectra() -> Tensor:
    return torch.randn(BATCH, 8, 16)
