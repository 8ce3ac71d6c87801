"""docs/how-to/change-and-search-tools.md: its commands in processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import DOCS, paste, run_shell

PAGE = DOCS / "how-to" / "change-and-search-tools.md"


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["warehouse.py"]
    said = run_shell(PAGE, tmp_path)
    assert "find_tools" in said
    assert "count_items" not in said
    assert said.splitlines()[-1] == "7"
