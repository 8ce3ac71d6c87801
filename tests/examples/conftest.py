"""The modules of examples/orchestre, imported as its server imports them, and taken out again:
their names are anybody's.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ORCHESTRE = Path(__file__).parents[2] / "examples" / "orchestre"


@pytest.fixture(autouse=True, scope="module")
def _importable() -> Iterator[None]:
    sys.path.insert(0, str(ORCHESTRE))
    before = set(sys.modules)
    yield
    sys.path.remove(str(ORCHESTRE))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ORCHESTRE)):
            del sys.modules[name]
