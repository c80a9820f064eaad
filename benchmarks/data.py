"""How long an epoch of data takes without a network.

    python benchmarks/data.py [FOLDER]      FOLDER or $COVEY_DATA holds the data sets

Prints one line for each set and augmentation: seconds for one epoch in batches of 128, best of three.
"""

import sys
import time

import torch

from covey.data import Augment, batches, load, train_batch

CASES = (
    ("fashion-mnist", "pad-crop, flip, normalise", Augment(pad=2, flip=True)),
    ("cifar10", "pad-crop, flip, normalise", Augment(pad=4, flip=True)),
    ("cifar10", "the same and cutout 16", Augment(pad=4, flip=True, cutout=16)),
    ("cifar10", "the same and RandAugment 2", Augment(pad=4, flip=True, operations=2)),
    ("cifar10", "the same, mixup and cutmix", Augment(pad=4, flip=True, mixup=0.5, cutmix=0.2)),
)


def epoch(data, augment, number):
    start, used = time.perf_counter(), time.process_time()
    for indices in batches(len(data.train), 128, seed=0, epoch=number):
        train_batch(data, indices, augment, seed=0, epoch=number)
    return time.perf_counter() - start, time.process_time() - used


def main():
    torch.set_num_threads(1)  # the operations are small: a second thread costs more than it brings
    loaded = {}
    for name, what, augment in CASES:
        if name not in loaded:
            start = time.perf_counter()
            loaded = {name: load(name, *sys.argv[1:2], validation=0.0, download=False)}
            print(f"{name}: loaded in {time.perf_counter() - start:.1f} s")
        data = loaded[name]
        seconds, used = min(epoch(data, augment, number) for number in range(3))
        print(f"{name:14} {len(data.train):6,}  {what:28} {seconds:6.2f} s ({used:.2f} s of one core)")


if __name__ == "__main__":
    main()
