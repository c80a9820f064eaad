import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "train")]

import device  # noqa: E402, F401  before anything goes backward
