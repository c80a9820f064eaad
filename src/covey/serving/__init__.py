"""An ensemble behind HTTP: predictions with their uncertainty, batched over concurrent requests."""

from __future__ import annotations

from covey.serving.application import application
from covey.serving.deployed import ServedFile
from covey.serving.limits import Limits
from covey.serving.model import Model
from covey.serving.server import bind, serve

__all__ = ["Limits", "Model", "ServedFile", "application", "bind", "serve"]
