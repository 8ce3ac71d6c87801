"""docs/tutorial: its files are pasted and used as it says."""

from __future__ import annotations

from pathlib import Path

from pages import DOCS, paste, run_tests, serve

FIRST = DOCS / "tutorial" / "first-server.md"
TESTING = DOCS / "tutorial" / "testing.md"


def test_the_servers_do_what_it_says(tmp_path: Path) -> None:
    assert paste(FIRST, tmp_path) == ["shop.py", "stock.py"]
    [price] = serve(["shop.py"], [("price", {"item": "apple", "amount": 2})], tmp_path)
    assert price["structuredContent"] == {"result": 3.0}
    command = ["-m", "concertino", "serve", "stock.py"]
    shelf, missing, counted = serve(
        command, [("shelf", {"item": "plum"}), ("shelf", {"item": "pear"}), ("count", {})], tmp_path
    )
    assert shelf["structuredContent"] == {"item": "plum", "left": 0}
    assert missing["isError"] is True
    assert counted["structuredContent"] == {"apple": 4, "plum": 0}


def test_the_tests_in_memory_pass(tmp_path: Path) -> None:
    paste(FIRST, tmp_path)
    names = paste(TESTING, tmp_path)
    assert names == ["test_stock.py", "test_count.py", "test_modern.py"]
    assert "5 passed" in run_tests(tmp_path, *names)
