"""A cache folder of its own for these tests, and the rooms of tests/server beside those of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "server"))


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not the user's: what one test keeps must not serve the next."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home
