"""Ensembles that are small enough to be made for every test."""

from __future__ import annotations

import torch
from torch import nn

import covey


def ensemble(inputs: int, outputs: int, *, task: str = "classification", head: tuple = ()) -> covey.Ensemble:
    torch.manual_seed(0)
    network = nn.Sequential(*head, nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))
    example = torch.zeros(2, 1, 8, 8) if head else torch.zeros(2, inputs)
    made = covey.convert(network, covey.DeepEnsemble(members=3), example=example).eval()
    made.task, made.run = task, "loop"
    return made
