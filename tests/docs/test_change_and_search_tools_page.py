"""docs/how-to/change-and-search-tools.md: its commands in processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import DOCS, blocks, paste, run_shell

from concertino.proxy.server_file import parse_server_file
from concertino.transforms import ArgumentChange, ToolChange

PAGE = DOCS / "how-to" / "change-and-search-tools.md"


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["warehouse.py", "shop.py"]
    # `python` is this one, which has the package; servers do not get our PYTHONPATH.
    program = tmp_path / ".programs" / "python"
    shop = tmp_path / "shop.py"
    shop.write_text(shop.read_text().replace('"python"', f'"{program}"'))
    said = run_shell(PAGE, tmp_path)
    assert said.splitlines()[0] == "7"
    assert "find_tools" in said
    assert "count_items" not in said
    assert said.splitlines()[-1] == "7"


def test_the_file_says_the_same_as_the_python() -> None:
    [text] = blocks(PAGE.read_text(), "json")
    [server] = parse_server_file(text.encode(), "mcp.json").servers
    assert server.options.deny == ("delete_*",)
    assert server.options.tools == {
        "count_items": ToolChange(
            "stock",
            tags=("read",),
            arguments={
                "warehouse": ArgumentChange(value="Oslo"),
                "item": ArgumentChange("product", description="As in the catalogue"),
            },
        )
    }
