"""docs/how-to/from-fastmcp.md and from-mcp.md: our side of each pair.

The other side is in tests/interop/test_porting_pages.py.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from docs.pages import paste, run_tests
from docs.porting import FROM_FASTMCP, FROM_MCP, TOPICS, check_server, run_client

pytestmark = pytest.mark.slow

# The names are spelled out: a listing that is not here is not tested.
PAIRS_OF_BOTH_PAGES = [
    "tools.py",
    "context.py",
    "resources.py",
    "prompts.py",
    "lifespan.py",
    "errors.py",
    "pictures.py",
    "asking.py",
]
OURS = {
    FROM_FASTMCP: [*PAIRS_OF_BOTH_PAGES, "session.py", "guarded.py", "together.py"],
    FROM_MCP: [*PAIRS_OF_BOTH_PAGES, "resolved.py", "lowlevel.py", "together.py"],
}
THEIRS = {
    FROM_FASTMCP: [
        "fastmcp_tools.py",
        "fastmcp_context.py",
        "fastmcp_resources.py",
        "fastmcp_prompts.py",
        "fastmcp_lifespan.py",
        "fastmcp_session.py",
        "fastmcp_errors.py",
        "fastmcp_pictures.py",
        "fastmcp_asking.py",
        "fastmcp_guarded.py",
        "fastmcp_together.py",
    ],
    FROM_MCP: [
        "mcp_tools.py",
        "mcp_context.py",
        "mcp_resources.py",
        "mcp_prompts.py",
        "mcp_lifespan.py",
        "mcp_resolved.py",
        "mcp_errors.py",
        "mcp_pictures.py",
        "mcp_asking.py",
        "mcp_lowlevel.py",
    ],
}
OTHERS = {
    FROM_FASTMCP: ["fastmcp_client.py", "client.py", "test_fastmcp_tools.py", "test_tools.py"],
    FROM_MCP: ["mcp_client.py", "client.py", "test_mcp_tools.py", "test_tools.py"],
}


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.stem)
def test_each_listing_of_a_page_is_tested(page: Path, tmp_path: Path) -> None:
    names = OURS[page] + THEIRS[page] + OTHERS[page]
    assert sorted(paste(page, tmp_path)) == sorted(names)
    assert {name for name in OURS[page] if name not in TOPICS} == set()


@pytest.mark.parametrize(
    ("page", "name"),
    [(page, name) for page in OURS for name in OURS[page]],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_a_server_does_what_its_pair_does(page: Path, name: str, tmp_path: Path) -> None:
    paste(page, tmp_path)
    asyncio.run(check_server(sys.executable, name, tmp_path))


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.stem)
def test_our_client_and_our_test(page: Path, tmp_path: Path) -> None:
    paste(page, tmp_path)
    assert run_client(sys.executable, "client.py", tmp_path) == "1.5\n"
    assert "1 passed" in run_tests(tmp_path, "test_tools.py")
