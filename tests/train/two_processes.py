"""`python two_processes.py FOLDER DEVICES SHARDS [EPOCHS]` trains; Fabric starts it once more for each process."""

import sys
from pathlib import Path

import torch
from small import convnet, images

import covey
from covey.data import Augment


def recipe(epochs):
    return covey.Recipe(
        epochs=epochs, batch=8, lr=0.05, run="loop", augment=Augment(pad=1, flip=True, mixup=0.2)
    )


if __name__ == "__main__":
    folder, devices, shards = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    epochs = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    torch.set_num_threads(1)
    # 41 samples in batches of 8 leave one sample, of which the second process has none
    covey.fit(
        convnet(),
        images(41),
        recipe(epochs),
        method=covey.BatchEnsemble(members=2),
        folder=folder,
        machine=covey.Machine(accelerator="cpu", devices=devices, shards=shards, progress=False),
        resume=True,
    )
