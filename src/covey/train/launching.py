"""Where training runs: the devices, the processes, and numbers that repeat."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from covey import accelerators
from covey.errors import OptionError
from covey.extras import load
from covey.train import ranks
from covey.train.alone import Alone
from covey.train.recipe import Machine

if TYPE_CHECKING:
    from lightning_fabric import Fabric


_log = logging.getLogger("covey")


@contextmanager
def launched(machine: Machine) -> Iterator[Fabric | Alone]:
    """Start the processes, if there are to be several, and make numbers repeatable."""
    if machine.progress:
        load("tqdm")  # said now rather than after the ensemble is built
    _check_accelerator(machine.accelerator)
    _check_launched(machine)
    cores = os.cpu_count() or 1
    if machine.threads is not None and machine.threads > cores:
        _log.warning(
            "threads=%d is more than the %d cores of this machine, which makes it slow",
            machine.threads,
            cores,
        )
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    steady()
    world = machine.devices * machine.nodes
    on_cpu = machine.accelerator == "cpu" or (
        machine.accelerator == "auto" and not accelerators.is_available()
    )
    if on_cpu and machine.precision == "16-mixed":
        raise OptionError(
            "precision='16-mixed' needs a GPU; on a CPU, precision='bf16-mixed' is the mixed one."
        )
    if world == 1 and on_cpu and machine.precision == "32-true":
        yield Alone()
        return
    lightning = load("lightning_fabric")

    fabric = lightning.Fabric(
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=machine.nodes,
        strategy="ddp" if world > 1 else "auto",
        precision=machine.precision,
    )
    if world == 1:
        fabric.launch()
        yield fabric
        return
    with ranks.launched(fabric):
        yield fabric


def _check_accelerator(name: str) -> None:
    """Refuse a device that is not there."""
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "gpu": accelerators.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if name in there and not there[name]():
        raise OptionError(
            f"accelerator is {name!r}, and torch sees no such device on this machine; 'cpu' or 'auto' will do "
            "(on the command line --accelerator)."
        )


_LAUNCHED = ("MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LSB_JOBID", "KUBERNETES_PORT")
"""Variables of the environment, of which launchers of several machines set at least one."""


def _check_launched(machine: Machine) -> None:
    """Refuse to wait for ever for other machines that nobody has told of this one."""
    if machine.nodes > 1 and not any(map(os.environ.get, _LAUNCHED)):
        raise OptionError(
            f"nodes={machine.nodes}, and this process was started alone: start it on each machine with torchrun "
            f"--nnodes {machine.nodes} or `fabric run`, which tell them of each other."
        )


def steady() -> None:
    """Call each function of torch's vector library once on one element.

    The first threaded use of one in a process was seen to be slightly wrong; a first use by one thread is not.
    """
    one = torch.ones(1)
    for function in (torch.sqrt, torch.tanh, torch.exp, torch.log, torch.erf):
        function(one)
