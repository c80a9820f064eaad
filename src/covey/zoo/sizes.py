"""How large the zoo's networks are, so that a list of them need not build them. A test builds them and compares."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """Parameters, and multiply-adds of a forward pass of one sample.

    For a sample of the shape that the zoo's record names, with 10 classes; 1000 for images of 224 x 224, 205 for
    characters.
    """

    parameters: int
    multiply_adds: int


SIZES: dict[str, Size] = {
    "mlp": Size(199_210, 198_800),
    "convnet": Size(62_458, 651_720),
    "lstm": Size(1_558_730, 151_250_000),
    "unet": Size(536_762, 48_971_776),
    "resnet-18": Size(11_689_512, 1_814_073_344),
    "resnet-34": Size(21_797_672, 3_663_761_408),
    "resnet-50": Size(25_557_032, 4_089_184_256),
    "resnet-101": Size(44_549_160, 7_801_405_440),
    "resnet-152": Size(60_192_808, 11_513_626_624),
    "cifar-resnet-18": Size(11_173_962, 555_422_720),
    "cifar-resnet-34": Size(21_282_122, 1_159_402_496),
    "cifar-resnet-50": Size(23_520_842, 1_297_829_888),
    "cifar-resnet-101": Size(42_512_970, 2_509_983_744),
    "cifar-resnet-152": Size(58_156_618, 3_722_137_600),
    "resnext-50": Size(25_028_904, 4_230_479_872),
    "cifar-resnext-50": Size(22_992_714, 1_343_967_232),
    "wrn-50-2": Size(68_883_240, 11_398_021_120),
    "wrn-10-4": Size(1_198_810, 166_119_936),
    "wrn-16-4": Size(2_748_890, 392_612_352),
    "wrn-16-7": Size(8_395_994, 1_187_697_024),
    "wrn-28-2": Size(1_467_610, 214_353_152),
    "wrn-28-3": Size(3_294_042, 477_808_512),
    "wrn-28-4": Size(5_849_050, 845_597_184),
    "wrn-28-5": Size(9_132_634, 1_317_719_168),
    "wrn-28-7": Size(17_885_530, 2_574_963_072),
    "wrn-28-8": Size(23_354_842, 3_360_084_992),
    "wrn-28-10": Size(36_479_194, 5_243_328_768),
    "wrn-28-12": Size(52_517_850, 7_543_905_792),
    "wrn-28-14": Size(71_470_810, 10_261_816_064),
    "wrn-28-18": Size(118_119_642, 16_949_636_352),
    "wrn-34-8": Size(29_551_578, 4_266_054_656),
    "mobilenet-v2": Size(3_504_872, 300_774_272),
    "cifar-mobilenet-v2": Size(2_236_682, 87_976_448),
    "densenet-121": Size(7_978_856, 2_834_161_664),
    "densenet-161": Size(28_681_000, 7_727_907_072),
    "cifar-densenet-121": Size(6_956_298, 888_350_720),
    "cifar-densenet-161": Size(26_482_378, 2_467_550_784),
    "pyramidnet": Size(28_485_477, 4_717_983_724),
    "pyramidnet-110-270": Size(28_485_477, 4_717_983_724),
    "pyramidnet-272-200": Size(26_210_842, 4_488_778_176),
    "vit": Size(5_362_762, 365_107_584),
    "vit-tiny-4": Size(5_362_762, 365_107_584),
    "vit-small-4": Size(21_342_346, 1_420_309_248),
    "vit-tiny-16": Size(5_717_416, 1_253_683_200),
    "vit-small-16": Size(22_050_664, 4_598_882_304),
    "vit-base-16": Size(86_567_656, 17_563_828_224),
}

VARIANTS: dict[str, int] = {
    "wrn-10-1": 12_501_632,
    "wrn-10-2": 44_483_840,
    "wrn-10-3": 95_602_560,
    "wrn-16-1": 26_657_408,
    "wrn-16-2": 101_106_944,
    "wrn-28-6": 1_894_174_464,
    "cifar-resnet-18:width=16": 35_046_656,
    "cifar-resnet-18:width=22": 66_031_328,
    "cifar-resnet-18:width=32": 139_299_328,
    "cifar-resnet-18:width=64": 555_422_720,
    "cifar-resnet-18:width=128": 2_218_141_696,
    "cifar-resnet-50:width=16": 81_449_984,
    "cifar-resnet-50:width=32": 324_904_960,
    "cifar-resnet-50:width=64": 1_297_829_888,
    "cifar-resnet-50:width=128": 5_187_739_648,
    "resnet-50:width=256": 63_986_204_672,
    "lstm:hidden=100": 14_250_000,
}
"""Multiply-adds of further networks that the recipes name, by name and options."""
