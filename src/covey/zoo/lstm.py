"""A character language model with an LSTM, as in von Oswald et al. (2021) on enwik8."""

from __future__ import annotations

from torch import Tensor, nn

from covey.errors import OptionError
from covey.zoo.check import one_of, whole
from covey.zoo.layers import dropout as dropout_layer


class LSTM(nn.Module):
    """Embedding, LSTM, linear layer over the vocabulary.

    Args:
        classes: size of the vocabulary.
        hidden: units of each layer.
        layers: LSTM layers on top of each other.
        embedding: width of the embedding; None is 205, or `hidden` with `tied`.
        tied: the head's weight is the embedding's; needs embedding = hidden.
        dropout: probability of an activation to be zeroed in training, after the embedding and each layer.

    Takes characters (B, T) as whole numbers below `classes`, returns logits of the next one (B, T, C). The
    paper gives 500 units and about 1.56 M parameters, but no embedding: enwik8 has 205 different characters,
    and an embedding of that width makes 1,558,730. All weights start uniform in [-0.01, 0.01].
    """

    def __init__(
        self,
        *,
        classes: int,
        hidden: int = 500,
        layers: int = 1,
        embedding: int | None = None,
        tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        whole("classes", classes)
        whole("hidden", hidden)
        one_of("tied", tied, (False, True))
        if embedding is None:
            embedding = hidden if tied else 205
        if tied and embedding != hidden:
            raise OptionError(f"tied needs embedding = hidden, got embedding {embedding} and hidden {hidden}")
        self.embedding = nn.Embedding(classes, whole("embedding", embedding))
        self.dropout = dropout_layer(dropout)
        between = dropout if whole("layers", layers) > 1 else 0.0
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=between)
        self.head = nn.Linear(hidden, classes)
        if tied:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.01, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, T, C) for characters (B, T)."""
        return self.head(self.dropout(self.lstm(self.dropout(self.embedding(x)))[0]))
