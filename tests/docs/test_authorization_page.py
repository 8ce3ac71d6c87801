"""docs/how-to/authorization.md: its servers and commands do what the page says."""

from __future__ import annotations

from pathlib import Path

from docs.pages import DOCS, environment, paste

from concertino import SyncClient
from concertino.client import ServerParameters

PAGE = DOCS / "how-to" / "authorization.md"


def test_nobody_is_known_on_stdio(tmp_path: Path) -> None:
    import sys

    assert "whoami.py" in paste(PAGE, tmp_path)
    target = ServerParameters(sys.executable, ["whoami.py"], cwd=tmp_path, env=environment())
    with SyncClient(target) as client:
        assert client.call_tool("whoami").text == "nobody that I know"
