"""`python -m covey.cli` is `covey`."""

from covey.cli.main import entry

entry()
