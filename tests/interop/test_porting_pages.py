"""docs/how-to/from-fastmcp.md and from-mcp.md: the other side of each pair does what ours does in
tests/docs/test_porting_pages.py.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from docs.pages import paste
from docs.porting import FROM_FASTMCP, FROM_MCP, check_server, run_client, run_test
from docs.test_porting_pages import THEIRS
from interop.tools import python_with

pytestmark = pytest.mark.slow


def python_of(page: Path) -> str | Path:
    """Return an interpreter that has the other package."""
    return python_with("fastmcp", "fastmcp>=4") if page == FROM_FASTMCP else sys.executable


@pytest.mark.parametrize(
    ("page", "name"),
    [(page, name) for page, names in THEIRS.items() for name in names],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_a_server_does_what_ours_does(page: Path, name: str, tmp_path: Path) -> None:
    paste(page, tmp_path)
    asyncio.run(check_server(python_of(page), name, tmp_path))


@pytest.mark.parametrize(("page", "prefix"), [(FROM_FASTMCP, "fastmcp"), (FROM_MCP, "mcp")])
def test_the_client_and_the_test(page: Path, prefix: str, tmp_path: Path) -> None:
    paste(page, tmp_path)
    python = python_of(page)
    assert run_client(python, f"{prefix}_client.py", tmp_path).endswith("1.5\n")
    run_test(python, f"test_{prefix}_tools.py", tmp_path)
