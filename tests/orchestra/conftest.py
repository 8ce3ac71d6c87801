"""What tests of links need: a place to listen at, certificates, logs that can be seen; for tests of
bridges, a hub.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from orchestra.bridges import Hub

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates


@pytest.fixture(autouse=True)
def _logs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("concertino"), "propagate", True)


@pytest.fixture(scope="session")
def certificates() -> Iterator[Certificates]:
    """An authority, and certificates of a hub and of a plugin. Tests do not change them."""
    with tempfile.TemporaryDirectory(prefix="certs") as name:
        made = Certificates(Path(name) / "certs")
        create_authority(made)
        for each in (
            "orchestrator",
            "tools.greeter",
            "tools.greeter-client",
            "orchestrator-to-tools.greeter",
        ):
            issue(made, each)
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path of mode 0700, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="o") as name:
        yield Path(name)


@pytest.fixture(params=("unix", "quic"))
def hub(request: pytest.FixtureRequest, folder: Path) -> Iterator[Hub]:
    """A hub of whom every answer is scripted, over each transport."""
    yield from _started(Hub(request.param, folder))


@pytest.fixture
def local(folder: Path) -> Iterator[Hub]:
    """The same over a Unix socket alone."""
    yield from _started(Hub("unix", folder))


def _started(hub: Hub) -> Iterator[Hub]:
    hub.start()
    yield hub
    hub.close()
