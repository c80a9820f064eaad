"""Data sets: known ones by name, and the user's own images, tables, arrays and texts."""

from covey.data.adapt import adapt
from covey.data.augment import Augment, train_batch
from covey.data.batches import batches, epoch_order
from covey.data.catalogue import KNOWN
from covey.data.container import Data, Normalisation, Split
from covey.data.inputs import prepare, read_inputs
from covey.data.known import download
from covey.data.load import load
from covey.data.show import contact_sheet, list_known, summary

__all__ = [
    "KNOWN",
    "Augment",
    "Data",
    "Normalisation",
    "Split",
    "adapt",
    "batches",
    "contact_sheet",
    "download",
    "epoch_order",
    "list_known",
    "load",
    "prepare",
    "read_inputs",
    "summary",
    "train_batch",
]
