"""Stand-ins for the forward of recurrent layers, which have no symbolic form in PyTorch.

Each writes down what ties the layer's tensors together and returns outputs of the right shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from covey.surgery.recorder import Recorder

# Rows of the weights per hidden unit: one block for each gate. Plain recurrent layers have none, so one block.
_GATES = {"LSTM": 4, "GRU": 3}


def recurrent_forward(module: nn.RNNBase, rec: Recorder) -> Callable[..., Any]:
    """A forward for nn.LSTM, nn.GRU and nn.RNN."""
    directions = 2 if module.bidirectional else 1
    hidden = module.hidden_size
    answer = module.proj_size or hidden

    def forward(input: Tensor, hx: Any = None) -> Any:
        *batch, width = input.shape
        rec.equate(width, module.input_size)
        _tie_state(rec, hx, answer, hidden)
        for layer in range(module.num_layers):
            for suffix in ("", "_reverse")[:directions]:
                _one_direction(module, f"_l{layer}{suffix}", width, rec)
            width = directions * answer
        if directions == 2:
            rec.compose(width, "sum", (answer, answer))
        outputs = input.new_empty((*batch, width))
        return outputs, _last_state(module, input, directions, answer)

    return forward


def _tie_state(rec: Recorder, hx: Any, answer: int, hidden: int) -> None:
    """A first state that the network gives, or gets as an input, is as wide as those that follow."""
    given = hx if isinstance(hx, tuple | list) else (hx,)
    for state, width in zip(given, (answer, hidden), strict=False):
        if state is not None:
            rec.equate(state.shape[-1], width)


def _one_direction(
    module: nn.RNNBase,
    ending: str,
    width: int,
    rec: Recorder,
) -> None:
    """Equations of the tensors whose names end in `ending`: one layer, read in one direction."""
    gates = _GATES.get(module.mode, 1)
    hidden = module.hidden_size
    answer = module.proj_size or hidden
    columns = {"weight_ih": width, "weight_hh": answer, "weight_hr": hidden}
    for name, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
        if not name.endswith(ending):
            continue
        kind = name.removesuffix(ending)
        rows, *inputs = tensor.shape  # a bias has no inputs
        rec.width(rows, *inputs)
        rec.sum_over(hidden, *inputs)
        if kind == "weight_hr":  # the projection of the hidden state, as large as the answer
            rec.equate(rows, answer)
        else:
            rec.equate(rows, gates * hidden)
            rec.compose(rows, "product", (gates, hidden))
        if kind in columns:
            rec.equate(inputs[0], columns[kind])


def _last_state(
    module: nn.RNNBase,
    input: Tensor,
    directions: int,
    answer: int,
) -> Any:
    """What a recurrent layer returns beside its outputs: the last hidden state, and for an LSTM the last cell."""
    batch: tuple[int, ...] = ()
    if input.dim() != 2:
        batch = (input.shape[0 if module.batch_first else 1],)
    layers = module.num_layers * directions
    state = input.new_empty((layers, *batch, answer))
    if module.mode != "LSTM":
        return state
    cell = input.new_empty((layers, *batch, module.hidden_size))
    return state, cell


def recurrent_cell_forward(module: nn.RNNCellBase, rec: Recorder) -> Callable[..., Any]:
    """A forward for nn.LSTMCell, nn.GRUCell and nn.RNNCell."""
    gates = _cell_gates(module)
    hidden = module.hidden_size

    def forward(input: Tensor, hx: Any = None) -> Any:
        *batch, width = input.shape
        rec.equate(width, module.input_size)
        _tie_state(rec, hx, hidden, hidden)
        columns = {"weight_ih": width, "weight_hh": hidden}
        for name, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            rows, *inputs = tensor.shape
            rec.width(rows, *inputs)
            rec.sum_over(hidden, *inputs)
            rec.equate(rows, gates * hidden)
            rec.compose(rows, "product", (gates, hidden))
            if name in columns:
                rec.equate(inputs[0], columns[name])
        state = input.new_empty((*batch, hidden))
        if isinstance(module, nn.LSTMCell):
            return state, state.clone()
        return state

    return forward


def _cell_gates(module: nn.RNNCellBase) -> int:
    if isinstance(module, nn.LSTMCell):
        return 4
    if isinstance(module, nn.GRUCell):
        return 3
    return 1
