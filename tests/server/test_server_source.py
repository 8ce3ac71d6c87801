"""backend/server_source.py: where a file makes a server, and which function nobody calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from concertino.backend.server_source import (
    UncalledFunction,
    server_in_function,
    server_name,
    uncalled_function,
)


@pytest.mark.parametrize(
    ("source", "name", "function"),
    [
        ("", "", ("", 0)),
        ("shop = Server('s')", "shop", ("", 0)),
        ("import concertino\nshop = concertino.Server('s')", "shop", ("", 0)),
        ("shop: Server = Server('s')", "shop", ("", 0)),
        ("x = 1\nserver.shop = Server('s')", "", ("", 0)),
        ("async def make():\n    return Server('s')", "", ("make", 2)),
        ("def other():\n    pass\ndef make():\n    s = Server('s')", "", ("make", 4)),
        ("def make(:", "", ("", 0)),
        ("\0", "", ("", 0)),
    ],
)
def test_a_server_is_found_in_a_file(
    source: str, name: str, function: tuple[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "server.py"
    file.write_text(source)
    assert (server_name(file), server_in_function(file)) == (name, function)


def test_a_file_that_cannot_be_read_holds_no_server(tmp_path: Path) -> None:
    assert (server_name(tmp_path), server_in_function(tmp_path)) == ("", ("", 0))


MAIN = "def main():\n    server = Server('s')\n    server.run()\n"
MAKE = "def make():\n    return Server('s')\n"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (MAIN, "main"),
        (f'"A server."\nfrom concertino import Server\nNAME = "s"\n{MAIN}', "main"),
        (f"{MAKE}def main():\n    make().run()\n", "main"),
        (f"def main():\n    make().run()\n{MAKE}def other():\n    pass\n", "main"),
        (f"{MAKE}def one():\n    make()\n    two()\ndef two():\n    one()\n", "make"),
    ],
)
def test_the_outermost_function_that_nothing_calls_is_found(
    source: str, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.py"
    file.write_text(source)
    maker, _ = server_in_function(file)
    assert uncalled_function(file, maker) == UncalledFunction(name, is_async=False)


def test_an_async_function_is_known_as_one(tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text(f"async {MAIN}")
    assert uncalled_function(file, "main") == UncalledFunction("main", is_async=True)


@pytest.mark.parametrize(
    "rest",
    [
        "main()",
        "if __name__ == '__main__':\n    main()",
        "server = main()",
        "def other():\n    main()\nserver = other()",
        "@main\ndef other():\n    pass",
        "class Shop:\n    server = main()",
        # Something else is done, so it may be no server at all.
        "print('done')",
        "for name in names:\n    pass",
    ],
)
def test_a_file_that_may_do_something_calls_all_that_it_wants(rest: str, tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text(f"{MAIN}{rest}\n")
    assert uncalled_function(file, "main") is None
