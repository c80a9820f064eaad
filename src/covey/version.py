"""The version of covey."""

__version__ = "0.2.0"
