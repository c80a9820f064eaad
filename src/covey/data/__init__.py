"""Data sets: known ones by name, and the user's own images, tables, arrays and texts."""

from covey.data.augment import Augment, train_batch
from covey.data.batches import batches, epoch_order
from covey.data.catalogue import KNOWN
from covey.data.container import Data, Normalisation, Split
from covey.data.known import download
from covey.data.load import load

__all__ = [
    "KNOWN",
    "Augment",
    "Data",
    "Normalisation",
    "Split",
    "batches",
    "download",
    "epoch_order",
    "load",
    "train_batch",
]
