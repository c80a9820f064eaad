"""Networks of timm: its own classes with few blocks and narrow layers, on small images."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from catalogue import CLASSES, Kind, Network, images, importable
from torch import nn

_CNN: Kind = "convolutional"
_VIT: Kind = "vision transformer"
_FOUR = (16, 16, 32, 32)

# name, kind, size of the image, arguments of timm.create_model, sizes that are no widths
_TABLE: list[tuple[str, Kind, int, dict[str, Any], tuple[int, ...]]] = [
    ("resnet18", _CNN, 32, dict(layers=(1, 1, 1, 1), channels=_FOUR, stem_width=16), ()),
    ("resnet50", _CNN, 32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16)), ()),
    (
        "resnext50_32x4d",
        _CNN,
        32,
        dict(layers=(1, 1, 1, 1), channels=(32, 32, 32, 32), stem_width=16, cardinality=4, base_width=16),
        (),
    ),
    ("seresnet50", _CNN, 32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=16), ()),
    ("resnetblur50", _CNN, 32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=16), ()),
    ("densenet121", _CNN, 32, dict(growth_rate=8, block_config=(2, 2, 2)), ()),
    ("mobilenetv3_small_050", _CNN, 32, {}, ()),
    ("test_efficientnet", _CNN, 32, {}, ()),
    ("test_efficientnet_evos", _CNN, 32, {}, ()),
    ("convnext_atto", _CNN, 32, dict(depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)), ()),
    ("convnextv2_atto", _CNN, 32, dict(depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)), ()),
    (
        "res2net50_14w_8s",
        _CNN,
        32,
        dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=16, base_width=16),
        (),
    ),
    ("dla34", _CNN, 32, dict(levels=(1, 1, 1, 1, 1, 1), channels=(8, 8, 16, 16, 32, 32)), ()),
    (
        "dpn48b",
        _CNN,
        32,
        dict(k_sec=(1, 1, 1, 1), inc_sec=(8, 8, 8, 8), k_r=16, groups=4, num_init_features=8),
        (),
    ),
    ("skresnet18", _CNN, 32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=16), ()),
    ("resnest14d", _CNN, 32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=16), ()),
    ("repvit_m0_9", _CNN, 32, dict(embed_dim=(16, 32), depth=(1, 1)), ()),
    ("starnet_s1", _CNN, 32, dict(base_dim=8, depths=(1, 1, 1)), ()),
    ("fasternet_t0", _CNN, 32, dict(embed_dim=16, depths=(1, 1), feature_dim=64), ()),
    ("inception_next_atto", _CNN, 32, dict(depths=(1, 1), dims=(32, 64)), ()),
    (
        "fastvit_t8",
        _CNN,
        64,
        dict(
            layers=(1, 1),
            embed_dims=(16, 32),
            mlp_ratios=(2, 2),
            token_mixers=("repmixer", "attention"),
            downsamples=(False, True),
            se_downsamples=(False, False),
            pos_embs=(None, None),
        ),
        (),
    ),
    (
        "vit_tiny_patch16_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4),
        (),
    ),
    (
        "vit_relpos_small_patch16_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4),
        (),
    ),
    (
        "deit_tiny_distilled_patch16_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4),
        (),
    ),
    (
        "swin_tiny_patch4_window7_224",
        _VIT,
        32,
        dict(img_size=32, window_size=4, depths=(2, 1), embed_dim=16, num_heads=(2, 4)),
        (),
    ),
    (
        "swinv2_tiny_window8_256",
        _VIT,
        32,
        dict(img_size=32, window_size=4, depths=(2, 1), embed_dim=16, num_heads=(2, 4)),
        (),
    ),
    (
        "swinv2_cr_tiny_224",
        _VIT,
        32,
        dict(img_size=32, window_size=4, depths=(2, 1), embed_dim=16, num_heads=(2, 4)),
        (),
    ),
    (
        "beit_base_patch16_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4),
        (),
    ),
    (
        "eva02_tiny_patch14_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4),
        (),
    ),
    (
        "vit_base_patch16_rope_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=48, num_heads=4),
        (),
    ),
    ("cait_xxs24_224", _VIT, 32, dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4), ()),
    (
        "convit_tiny",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4, local_up_to_layer=1),
        (),
    ),
    (
        "coat_tiny",
        _VIT,
        64,
        dict(
            img_size=64,
            embed_dims=(16, 16, 16, 16),
            serial_depths=(1, 1, 1, 1),
            parallel_depth=1,
            num_heads=8,
        ),
        (),
    ),
    (
        "levit_128s",
        _VIT,
        64,
        dict(img_size=64, embed_dim=(16, 32, 32), key_dim=8, num_heads=(2, 4, 4), depth=(1, 1, 1)),
        (),
    ),
    (
        "tiny_vit_5m_224",
        _VIT,
        32,
        dict(embed_dims=(16, 32), depths=(1, 1), num_heads=(2, 4), window_sizes=(4, 4)),
        (),
    ),
    (
        "efficientformerv2_s0",
        _VIT,
        64,
        dict(img_size=64, depths=(1, 1), embed_dims=(16, 32), mlp_ratios=((2,), (2,)), num_vit=1),
        (),
    ),
    (
        "efficientvit_m0",
        _VIT,
        64,
        dict(
            img_size=64,
            embed_dim=(16, 32, 32),
            key_dim=(4, 4, 4),
            depth=(1, 1, 1),
            num_heads=(2, 2, 2),
            window_size=(4, 2, 2),
        ),
        (),
    ),
    (
        "xcit_nano_12_p16_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, depth=1, embed_dim=32, num_heads=4, cls_attn_layers=1),
        (),
    ),
    (
        "tnt_s_patch16_224",
        _VIT,
        32,
        dict(
            img_size=32,
            patch_size=16,
            embed_dim=32,
            inner_dim=8,
            depth=2,
            num_heads_inner=2,
            num_heads_outer=4,
        ),
        (),
    ),
    (
        "twins_svt_small",
        _VIT,
        32,
        dict(
            img_size=32,
            embed_dims=(16, 32),
            num_heads=(2, 4),
            mlp_ratios=(2, 2),
            depths=(2, 2),
            wss=(4, 4),
            sr_ratios=(4, 2),
        ),
        (),
    ),
    (
        "pvt_v2_b0",
        _VIT,
        32,
        dict(depths=(1, 1), embed_dims=(16, 32), num_heads=(2, 4), sr_ratios=(4, 2), mlp_ratios=(2, 2)),
        (),
    ),
    ("edgenext_xx_small", _VIT, 64, dict(dims=(16, 16, 32, 32), depths=(1, 1, 2, 1), heads=(2, 2, 2, 2)), ()),
    (
        "pit_ti_224",
        _VIT,
        32,
        dict(img_size=32, patch_size=8, stride=4, base_dims=(8, 8), depth=(1, 1), heads=(2, 4)),
        (),
    ),
    (
        "visformer_tiny",
        _VIT,
        64,
        dict(img_size=64, init_channels=8, embed_dim=32, depth=(1, 1, 1), num_heads=2),
        (),
    ),
    ("davit_tiny", _VIT, 32, dict(depths=(1, 1), embed_dims=(16, 32), num_heads=(2, 4), window_size=4), ()),
    (
        "hiera_tiny_224",
        _VIT,
        64,
        dict(
            img_size=64,
            embed_dim=16,
            num_heads=2,
            stages=(1, 1),
            q_pool=1,
            mask_unit_size=(4, 4),
            mask_unit_attn=(True, False),
        ),
        (),
    ),
    ("swiftformer_xs", _VIT, 64, dict(layers=(1, 1), embed_dims=(16, 32), downsamples=(False, True)), ()),
    (
        "sequencer2d_s",
        "recurrent",
        32,
        dict(
            img_size=32,
            layers=(1, 1),
            patch_sizes=(4, 2),
            embed_dims=(16, 32),
            hidden_sizes=(8, 8),
            mlp_ratios=(2.0, 2.0),
        ),
        (),
    ),
]


def _byob(name: str, module: str = "byobnet", img_size: int | None = None, **changes: Any) -> nn.Module:
    """One of timm's networks of blocks, with one block a stage and an eighth of the channels."""
    from timm.models.byobnet import ByobNet

    config = _module(module).model_cfgs[name]
    blocks = tuple(_one_block(stage) for stage in config.blocks)
    stem = 16 if isinstance(config.stem_chs, int) else (8, 16)
    config = replace(config, blocks=blocks, stem_chs=stem, width_factor=1.0, num_features=0, **changes)
    return ByobNet(config, num_classes=CLASSES, img_size=img_size)


def _one_block(stage: Any) -> Any:
    """A stage, or the blocks of different types that it alternates, each once."""
    if not hasattr(stage, "c"):
        by_type = {block.type: block for block in stage}
        return tuple(_one_block(block) for block in by_type.values())
    groups = stage.gs if stage.gs in (None, 0, 1) else 4
    return replace(stage, d=1, c=max(16, stage.c // 16), gs=groups)


def _nf_resnet() -> nn.Module:
    nfnet = _module("nfnet")
    config = nfnet._nfres_cfg(depths=(1, 1, 1, 1), channels=(16, 32, 32, 64))
    return nfnet.NormFreeNet(replace(config, stem_chs=16), num_classes=CLASSES)


def _dm_nfnet() -> nn.Module:
    nfnet = _module("nfnet")
    config = nfnet._dm_nfnet_cfg(depths=(1, 1, 1, 1), channels=(16, 32, 32, 64))
    config = replace(config, stem_chs=16, group_size=8, num_features=64)
    return nfnet.NormFreeNet(config, num_classes=CLASSES)


def _regnet(se_ratio: float) -> nn.Module:
    regnet = _module("regnet")
    config = regnet.RegNetCfg(depth=6, w0=8, wa=8.0, wm=2.0, group_size=8, stem_width=16, se_ratio=se_ratio)
    return regnet.RegNet(config, num_classes=CLASSES)


def _mobilenet_v2() -> nn.Module:
    return _module("efficientnet")._gen_mobilenet_v2(
        "mobilenetv2_035", 0.2, fix_stem_head=False, num_classes=CLASSES
    )


def _efficientnet() -> nn.Module:
    generate = _module("efficientnet")._gen_efficientnet
    return generate("efficientnet_b0", 0.2, 0.3, num_classes=CLASSES, drop_rate=0.2, drop_path_rate=0.2)


def _efficientnet_condconv() -> nn.Module:
    generate = _module("efficientnet")._gen_efficientnet_condconv
    return generate("efficientnet_cc_b0_4e", 0.1, 0.3, num_classes=CLASSES)


def _mixnet() -> nn.Module:
    return _module("efficientnet")._gen_mixnet_m("mixnet_m", 0.2, 0.3, num_classes=CLASSES)


def _hardcorenas() -> nn.Module:
    definition = [
        ["ds_r1_k3_s1_e1_c8_nre"],
        ["ir_r1_k5_s2_e3_c16_nre", "ir_r1_k5_s1_e3_c16_nre_se0.25"],
        ["ir_r1_k3_s2_e3_c16_nsw_se0.25"],
        ["cn_r1_k1_s1_c32"],
    ]
    generate = _module("hardcorenas")._gen_hardcorenas
    return generate(False, "hardcorenas_a", definition, num_classes=CLASSES)


def _ghostnet(version: str) -> nn.Module:
    stages = [[[3, 16, 16, 0, 1]], [[3, 32, 16, 0.25, 2]], [[5, 32, 32, 0.25, 2]]]
    return _module("ghostnet").GhostNet(stages, num_classes=CLASSES, version=version)


def _repghostnet() -> nn.Module:
    stages = [[[3, 8, 16, 0, 1]], [[3, 24, 16, 0.25, 2]], [[5, 36, 32, 0.25, 2]]]
    return _module("repghost").RepGhostNet(stages, num_classes=CLASSES)


def _rexnet() -> nn.Module:
    return _module("rexnet").RexNet(
        width_mult=0.5, depth_mult=0.3, initial_chs=16, final_chs=48, num_classes=CLASSES
    )


def _focalnet() -> nn.Module:
    options = dict(embed_dim=16, depths=(1, 1), focal_levels=(2, 2), focal_windows=(3, 3))
    return _module("focalnet").FocalNet(**options, num_classes=CLASSES)


def _convmixer() -> nn.Module:
    return _module("convmixer").ConvMixer(32, 2, patch_size=4, kernel_size=5, num_classes=CLASSES)


def _poolformer() -> nn.Module:
    metaformer = _module("metaformer")
    options = dict(depths=(1, 1), dims=(16, 32), mlp_act=nn.GELU, mlp_bias=True, use_mlp_head=False)
    return metaformer.MetaFormer(**options, layer_scale_init_values=1e-5, num_classes=CLASSES)


def _caformer() -> nn.Module:
    metaformer = _module("metaformer")
    mixers = [metaformer.SepConv, metaformer.Attention]
    norms = [metaformer.LayerNorm2dNoBias, metaformer.LayerNormNoBias]
    options = dict(depths=(1, 1), dims=(32, 64), token_mixers=mixers, norm_layers=norms)
    return metaformer.MetaFormer(**options, num_classes=CLASSES)


def _efficientformer() -> nn.Module:
    options = dict(depths=(1, 2), embed_dims=(16, 32), num_vit=1)
    return _module("efficientformer").EfficientFormer(**options, num_classes=CLASSES)


def _nest() -> nn.Module:
    options = dict(img_size=32, num_levels=2, embed_dims=(16, 32), num_heads=(2, 4), depths=(1, 1))
    return _module("nest").Nest(**options, num_classes=CLASSES)


def _crossvit() -> nn.Module:
    options = dict(img_size=48, img_scale=(1.0, 2 / 3), patch_size=(12, 16), num_heads=(2, 2))
    options |= dict(embed_dim=(16, 32), depth=((1, 1, 0),))
    return _module("crossvit").CrossVit(**options, num_classes=CLASSES)


def _volo() -> nn.Module:
    options = dict(img_size=32, layers=(1, 1), embed_dims=(16, 32), num_heads=(2, 2), stem_hidden_dim=16)
    options |= dict(downsamples=(True, False), outlook_attention=(True, False))
    return _module("volo").VOLO(**options, num_classes=CLASSES)


def _gcvit() -> nn.Module:
    options = dict(img_size=64, window_ratio=(8, 8), embed_dim=16, depths=(1, 1), num_heads=(2, 4))
    return _module("gcvit").GlobalContextVit(**options, num_classes=CLASSES)


def _mvit() -> nn.Module:
    mvit = _module("mvitv2")
    config = mvit.MultiScaleVitCfg(depths=(1, 1), embed_dim=16, num_heads=2, stride_q=((1, 1), (2, 2)))
    return mvit.MultiScaleVit(config, img_size=(32, 32), num_classes=CLASSES)


def _maxxvit(name: str, **changes: Any) -> nn.Module:
    maxxvit = _module("maxxvit")
    config = maxxvit.model_cfgs[name]
    attention = replace(config.transformer_cfg, dim_head=8, partition_ratio=16)
    config = replace(config, stem_width=(8, 16), transformer_cfg=attention, head_hidden_size=None, **changes)
    return maxxvit.MaxxVit(config, img_size=64, num_classes=CLASSES)


def _mobilevit(name: str) -> nn.Module:
    module = _module("mobilevit")
    mobile = "mobilevit" if name == "mobilevit_xxs" else "mobilevit2"
    block = _module("byobnet").ByoBlockCfg
    attention = dict(patch_size=2, transformer_depth=1)
    attention |= dict(num_heads=2, transformer_dim=16, mlp_ratio=2) if mobile == "mobilevit" else {}
    blocks = (
        block(type="bottle", d=1, c=16, s=1, gs=1, br=2.0),
        (
            block(type="bottle", d=1, c=16, s=2, gs=1, br=2.0),
            block(type=mobile, d=1, c=16, s=1, block_kwargs=attention),
        ),
    )
    config = replace(module.model_cfgs[name], blocks=blocks, stem_chs=16, num_features=0)
    return _module("byobnet").ByobNet(config, num_classes=CLASSES)


def _mixer(**options: Any) -> nn.Module:
    return _module("mlp_mixer").MlpMixer(
        img_size=32, patch_size=8, num_blocks=2, embed_dim=32, num_classes=CLASSES, **options
    )


def _resmlp() -> nn.Module:
    module = _module("mlp_mixer")
    return _mixer(mlp_ratio=4, block_layer=module.ResBlock, norm_layer=module.Affine)


def _gmlp() -> nn.Module:
    module = _module("mlp_mixer")
    return _mixer(mlp_ratio=2, block_layer=module.SpatialGatingBlock, mlp_layer=module.GatedMlp)


def _vovnet() -> nn.Module:
    widths = dict(stem_chs=(8, 8, 16), stage_conv_chs=(8, 8, 16, 16), stage_out_chs=(16, 16, 32, 32))
    counts = dict(layer_per_block=2, block_per_stage=(1, 1, 1, 1))
    config = dict(**widths, **counts, residual=True, depthwise=False, attn="ese")
    return _module("vovnet").VovNet(config, num_classes=CLASSES)


def _selecsls() -> nn.Module:
    module = _module("selecsls")
    features = [(32, 0, 16, 16, True, 2), (16, 16, 16, 32, False, 1)]
    info = [dict(num_chs=32, reduction=2, module="stem.2")]
    config = dict(block=module.SelecSlsBlock, features=features, head=[(32, 64, 3, 2)], num_features=64)
    return module.SelecSls(config | dict(feature_info=info), num_classes=CLASSES)


def _vgg() -> nn.Module:
    layers = [8, "M", 16, 16, "M", 32, "M", 32, "M", 32, "M"]
    options = dict(mlp_ratio=0.01, drop_rate=0.5, norm_layer=nn.BatchNorm2d)
    return _module("vgg").VGG(layers, **options, num_classes=CLASSES)


def _darknet() -> nn.Module:
    module = _module("cspnet")
    config = module.model_cfgs["cspdarknet53"]
    stages = replace(config.stages, depth=(1, 1), out_chs=(32, 64), stride=(2, 2))
    config = replace(config, stem=replace(config.stem, out_chs=16), stages=stages)
    return module.CspNet(config, num_classes=CLASSES)


def _xception() -> nn.Module:
    module = _module("xception_aligned")
    blocks = [dict(in_chs=64, out_chs=32, stride=2), dict(in_chs=32, out_chs=(32, 32, 48), stride=1)]
    return module.XceptionAligned(blocks, num_classes=CLASSES)


def _bit() -> nn.Module:
    module = _module("resnetv2")
    norm = functools.partial(module.GroupNormAct, num_groups=8)
    options = dict(layers=(1, 1), channels=(32, 64), stem_chs=16, stem_type="fixed", norm_layer=norm)
    return module.ResNetV2(**options, num_classes=CLASSES)


# name, kind, size of the image, how it is built, sizes that are no widths
_BUILT: list[tuple[str, Kind, int, Callable[[], nn.Module], tuple[int, ...]]] = [
    ("repvgg_a0", _CNN, 32, lambda: _byob("repvgg_a0"), ()),
    ("mobileone_s0", _CNN, 32, lambda: _byob("mobileone_s0"), ()),
    ("gcresnext26ts", _CNN, 32, lambda: _byob("gcresnext26ts"), ()),
    ("bat_resnext26ts", _CNN, 64, lambda: _byob("bat_resnext26ts", attn_kwargs=dict(block_size=2)), ()),
    ("lambda_resnet26t", _CNN, 64, lambda: _byob("lambda_resnet26t", "byoanet"), ()),
    (
        "halonet26t",
        _CNN,
        64,
        lambda: _byob("halonet26t", "byoanet", self_attn_kwargs=dict(block_size=2, halo_size=1)),
        (),
    ),
    ("botnet26t", _CNN, 64, lambda: _byob("botnet26t", "byoanet", img_size=64), ()),
    ("nf_resnet50", _CNN, 32, _nf_resnet, ()),
    ("dm_nfnet_f0", _CNN, 32, _dm_nfnet, ()),
    ("regnetx", _CNN, 32, lambda: _regnet(0.0), ()),
    ("regnety", _CNN, 32, lambda: _regnet(0.25), ()),
    ("mobilenetv2", _CNN, 32, _mobilenet_v2, ()),
    ("efficientnet_b0", _CNN, 32, _efficientnet, ()),
    ("efficientnet_cc_b0_4e", _CNN, 32, _efficientnet_condconv, ()),
    ("mixnet_m", _CNN, 32, _mixnet, ()),
    ("hardcorenas", _CNN, 32, _hardcorenas, ()),
    ("ghostnet", _CNN, 32, lambda: _ghostnet("v1"), ()),
    ("ghostnetv2", _CNN, 32, lambda: _ghostnet("v2"), ()),
    ("repghostnet", _CNN, 32, _repghostnet, ()),
    ("rexnet", _CNN, 32, _rexnet, ()),
    ("focalnet", _CNN, 32, _focalnet, ()),
    ("convmixer", _CNN, 32, _convmixer, ()),
    ("poolformer", _CNN, 32, _poolformer, ()),
    ("ese_vovnet", _CNN, 32, _vovnet, ()),
    ("selecsls", _CNN, 32, _selecsls, ()),
    ("vgg11_bn", _CNN, 32, _vgg, ()),
    ("cspdarknet53", _CNN, 32, _darknet, ()),
    ("xception41", _CNN, 32, _xception, ()),
    ("resnetv2_bit", _CNN, 32, _bit, ()),
    ("caformer", _VIT, 32, _caformer, ()),
    ("efficientformer", _VIT, 56, _efficientformer, ()),
    ("nest", _VIT, 32, _nest, ()),
    ("crossvit", _VIT, 48, _crossvit, ()),
    ("volo", _VIT, 32, _volo, ()),
    ("gcvit", _VIT, 64, _gcvit, ()),
    ("mvitv2", _VIT, 32, _mvit, ()),
    (
        "maxvit",
        _VIT,
        64,
        lambda: _maxxvit("maxvit_pico_rw", depths=(1, 1), embed_dim=(16, 32), block_type=("M", "M")),
        (),
    ),
    (
        "coatnet",
        _VIT,
        64,
        lambda: _maxxvit("coatnet_pico_rw", depths=(1, 1), embed_dim=(16, 32), block_type=("C", "T")),
        (),
    ),
    ("mobilevit_xxs", _VIT, 32, lambda: _mobilevit("mobilevit_xxs"), ()),
    ("mobilevitv2_050", _VIT, 32, lambda: _mobilevit("mobilevitv2_050"), ()),
    ("mixer", "mlp", 32, _mixer, (16,)),
    ("resmlp", "mlp", 32, _resmlp, (16,)),
    ("gmlp", "mlp", 32, _gmlp, (16,)),
]


# Heads are fewer and as wide as before. Keys that all heads share are one head wide, and so stay.
_NARROW = {
    "lambda_resnet26t": (
        ("stages.2.1.self_attn.qkv.weight", (32 + 16 + 4, 8)),
        ("stages.2.1.self_attn.conv_lambda.weight", (16, 1, 9, 9, 1)),
        ("stages.3.0.self_attn.qkv.weight", (32 + 16 + 8, 16)),
        ("stages.3.0.self_attn.conv_lambda.weight", (16, 1, 9, 9, 1)),
    )
}


def networks() -> list[Network]:
    """All of them, or none where timm cannot be imported."""
    if not importable("timm"):
        return []
    found = []
    for name, kind, size, options, unscaled in _TABLE:
        build = functools.partial(_create, name, options)
        found.append(Network(f"timm {name}", kind, "timm", build, images(size), unscaled=unscaled))
    for name, kind, size, build, unscaled in _BUILT:
        narrow = _NARROW.get(name, ())
        found.append(
            Network(f"timm {name}", kind, "timm", build, images(size), unscaled=unscaled, narrow=narrow)
        )
    return found


def _create(name: str, options: dict[str, Any]) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=CLASSES, **options)


def _module(name: str) -> Any:
    return importlib.import_module(f"timm.models.{name}")
