"""Finds the line of the user's own code that PyTorch is running, for errors that say where to look."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import sympy
import torch
from torch import nn

_TORCH = str(Path(torch.__file__).parent)
_SYMPY = str(Path(sympy.__file__).parent)
_SURGERY = str(Path(__file__).parent)
_NOT_THE_USERS = (_TORCH, _SYMPY, _SURGERY, "<frozen", "<string>")

ModuleNames = dict[int, str]  # the id of each of a network's modules -> its path


@dataclass(frozen=True)
class Where:
    """A line of the network's code, and the path of the module whose forward it is in."""

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        place = f"module '{self.module}', " if self.module else ""
        file = Path(self.file).name
        return f"{place}{file}:{self.line}: {code}"


def is_torchs(file: str) -> bool:
    """Whether a file belongs to PyTorch."""
    return file.startswith(_TORCH)


def module_names(network: nn.Module) -> ModuleNames:
    """The path of every module, by the module's id."""
    return {id(module): path for path, module in network.named_modules()}


def user_line(modules: ModuleNames, frame: FrameType | None = None) -> Where | None:
    """The innermost line of the network's own code that is being run, with the module whose forward it is in.

    Args:
        modules: the network's modules (see `module_names`).
        frame: where to start looking; by default, the caller's.
    """
    frame = frame or sys._getframe(1)
    innermost: FrameType | None = None
    while frame is not None:
        is_users = not frame.f_code.co_filename.startswith(_NOT_THE_USERS)
        if innermost is None and is_users:
            innermost = frame
        # The line may be in a function that a forward calls; the module is that of the first forward further out.
        owner = frame.f_locals.get("self")
        is_forward = isinstance(owner, nn.Module) and id(owner) in modules
        if innermost is not None and is_forward:
            file = innermost.f_code.co_filename
            return Where(modules[id(owner)], file, innermost.f_lineno)
        frame = frame.f_back
    return None


def failure(problem: BaseException, modules: ModuleNames) -> Where | None:
    """Where in the network's own code an exception was raised."""
    innermost: FrameType | None = None
    trace = problem.__traceback__
    while trace is not None:
        innermost = trace.tb_frame
        trace = trace.tb_next
    if innermost is None:
        return None
    return user_line(modules, innermost)
