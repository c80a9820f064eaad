from __future__ import annotations

import subprocess
import sys

import pytest

from covey import surgery


def test_every_name_is_found() -> None:
    for name in surgery.__all__:
        assert getattr(surgery, name).__module__.startswith("covey.surgery")


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="'covey.surgery' has no attribute 'widen'"):
        surgery.widen  # noqa: B018


def test_loading_a_packed_ensemble_needs_no_sympy() -> None:
    """Edits are applied without the analysis; only narrowing needs sympy."""
    code = "import sys; from covey.surgery import apply_edits; print('sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
