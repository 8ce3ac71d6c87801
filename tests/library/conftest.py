"""A cache folder of its own for these tests."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not the user's: what one test keeps must not serve the next."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture(autouse=True, scope="module")
def nothing_is_held_on_to() -> Iterator[None]:
    """A watch ends a moment after its library, and a cache's lock may be garbage by then: the next
    file may count descriptors.
    """
    yield
    for thread in threading.enumerate():
        if thread.name == "watch":
            thread.join(10)
    gc.collect()
