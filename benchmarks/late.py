"""What late-phase weights cost: training after the start, inference and memory, as ratios to the plain network.

    python benchmarks/late.py                       # a ConvNet and WRN-16-2 on random images of CIFAR's size
    python benchmarks/late.py --network wrn-28-2

Both are trained by the engine of `covey.fit`, block by block in turn, now one and now the other first, so that what
else the machine does hits both. Freed memory is kept, as `covey train` does: otherwise fetching it from the system
again is a sixth of the time, and differs from block to block.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import covey
from covey import zoo
from covey.cli.memory import keep_freed_memory
from covey.data import Augment, Data, Split
from covey.train.alone import Alone
from covey.train.prepare import make_job
from covey.train.settling import settle
from covey.train.state import Job, State
from covey.train.steps import STEPS

MEMBERS = 10
BATCH = 128


def random_images(samples: int = MEMBERS * BATCH) -> Data:
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=draw)
        return Split(images, torch.randint(10, (count,), generator=draw))

    scale = covey.data.Normalisation((0.5,) * 3, (0.25,) * 3)
    return Data(
        split(samples), split(16), split(16), task="classification", classes=tuple("abcdefghij"),
        shape=(3, 32, 32), normalisation=scale,
    )  # fmt: skip


def begun(network: torch.nn.Module, data: Data, method: object) -> tuple[Job, State]:
    """A run that is about to take its first step."""
    machine = covey.Machine(accelerator="cpu", progress=False)
    recipe = covey.Recipe(epochs=100, batch=BATCH, lr=0.01, augment=Augment(pad=4, flip=True))
    job = make_job(Alone(), network, data, recipe, machine, method, None, resume=False)
    ensemble = job.phases[0].build(network, job).train()
    state = State(ensemble, STEPS[job.phases[0].step].optimizer(ensemble, recipe))
    settle(job, state)
    return job, state


def consume(job: Job, state: State, minibatches: int) -> float:
    """Processor seconds that so many minibatches take, which other work on the machine hardly changes."""
    start, end = time.process_time(), state.consumed + minibatches
    while state.consumed < end:
        _, used = STEPS[job.phases[0].step].take(job, state)
        state.consumed += used
    return time.process_time() - start


def ratio(first: Callable[[], float], second: Callable[[], float], rounds: int) -> dict[str, float]:
    """Median over rounds of second over first, measured in turn, and the smallest times of both."""
    first(), second()
    pairs = []
    for turn in range(rounds):
        if turn % 2:
            pairs.append((first(), second()))
        else:
            pairs.append((second(), first())[::-1])
    return {
        "plain": min(a for a, _ in pairs),
        "late": min(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "ratio_of_best": min(b for _, b in pairs) / min(a for a, _ in pairs),
    }


def numbers(state: State) -> int:
    """Numbers that training holds besides activations: weights, optimiser state and buffers."""
    kept = [*state.ensemble.parameters(), *state.ensemble.buffers()]
    kept += [t for values in state.optimizer.state.values() for t in values.values() if torch.is_tensor(t)]
    return sum(t.numel() for t in kept)


class Held:
    """A tensor that a backward pass waits for; counts the bytes of all that are alive."""

    alive = largest = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        Held.alive += tensor.nbytes
        Held.largest = max(Held.largest, Held.alive)

    def __del__(self) -> None:
        Held.alive -= self.tensor.nbytes


def peak(begun: tuple[Job, State]) -> int:
    """Most bytes held for backward passes at any moment of ten minibatches."""
    Held.alive = Held.largest = 0
    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        consume(*begun, MEMBERS)
    return Held.largest


def measure(name: str, rounds: int) -> dict:
    torch.manual_seed(0)
    network, data = zoo.create(name, classes=10, **zoo.find(name).arguments_for((3, 32, 32))), random_images()
    plain = begun(network, data, None)
    late = begun(network, data, covey.LatePhase(members=MEMBERS, start=0))
    found = {"training": ratio(lambda: consume(*plain, MEMBERS), lambda: consume(*late, MEMBERS), rounds)}

    collapsed, x = late[1].ensemble.collapse().eval(), torch.randn(BATCH, 3, 32, 32)
    original = network.eval()

    def seconds(net: torch.nn.Module) -> float:
        with torch.no_grad():
            start = time.process_time()
            net(x)
            return time.process_time() - start

    found["inference"] = ratio(lambda: seconds(original), lambda: seconds(collapsed), 4 * rounds)
    found["same_architecture"] = str(collapsed) == str(original)
    own = sum(p.numel() for g in late[1].ensemble.param_groups(1.0) if g["members"] for p in g["params"])
    statistics_ = sum(t.numel() for t in late[1].ensemble.state.buffers())
    found["extra_numbers"] = numbers(late[1]) - numbers(plain[1])
    # K copies of what members own, of its momentum and of the statistics, instead of one of each
    found["numbers_of_the_copies"] = round((2 * own + statistics_) * (MEMBERS - 1) / MEMBERS)
    found["saved_for_backward"] = {"plain": peak(plain), "late": peak(late)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    found = {}
    for name in given.network or ["convnet", "wrn-16-2"]:
        found[name] = measure(name, given.rounds)
        print(name, json.dumps(found[name], indent=1), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
