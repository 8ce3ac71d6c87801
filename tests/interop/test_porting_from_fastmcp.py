"""docs/how-to/from-fastmcp.md: FastMCP's side of each pair does what ours does in
tests/docs/test_porting_pages.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from docs.pages import paste
from docs.porting import FROM_FASTMCP, check_server, run_client, run_test
from docs.test_porting_pages import THEIRS
from interop.tools import python_with

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with("fastmcp", "fastmcp>=4")


@pytest.mark.parametrize("name", THEIRS[FROM_FASTMCP])
def test_a_server_does_what_ours_does(name: str, python: Path, tmp_path: Path) -> None:
    paste(FROM_FASTMCP, tmp_path)
    asyncio.run(check_server(python, name, tmp_path))


def test_the_client_and_the_test(python: Path, tmp_path: Path) -> None:
    paste(FROM_FASTMCP, tmp_path)
    assert run_client(python, "fastmcp_client.py", tmp_path).endswith("1.5\n")
    run_test(python, "test_fastmcp_tools.py", tmp_path)
