"""server/project_version.py: the version of a server that is not given one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import concertino
from concertino import Server
from concertino.server.project_version import find_root, project_version

SRC = str(Path(concertino.__file__).parents[1])
PROJECT = '[project]\nname = "shop"\nversion = "1.4.2"\n'
FILE = "from concertino import Server\nserver = Server('shop')\n"


def write(folder: Path, **files: str) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.parametrize(
    ("files", "file", "version"),
    [
        ({"pyproject.toml": PROJECT}, "shop.py", "1.4.2"),
        ({"pyproject.toml": PROJECT, "shop/__init__.py": ""}, "shop/server.py", "1.4.2"),
        (
            {"pyproject.toml": PROJECT, "src/shop/__init__.py": "", "src/shop/a/__init__.py": ""},
            "src/shop/a/server.py",
            "1.4.2",
        ),
        ({"pyproject.toml": PROJECT}, "src/shop.py", "1.4.2"),
        ({"site-packages/Shop_Server-2.0.dist-info/METADATA": ""}, "site-packages/shop.py", ""),
        ({"site-packages/Shop-2.0.dist-info/METADATA": ""}, "site-packages/shop.py", "2.0"),
        (
            {
                "dist-packages/my_shop-2.0b1.dist-info/METADATA": "",
                "dist-packages/my_shop/__init__.py": "",
            },
            "dist-packages/my_shop/server.py",
            "2.0b1",
        ),
        # A file in another folder of a project need not belong to it.
        ({"pyproject.toml": PROJECT}, "scripts/shop.py", ""),
        ({"pyproject.toml": "[project]\ndynamic = ['version']\n"}, "shop.py", ""),
        ({"pyproject.toml": "[project]\nversion = 1\n"}, "shop.py", ""),
        ({"pyproject.toml": "project = 1\n"}, "shop.py", ""),
        ({"pyproject.toml": "[project\n"}, "shop.py", ""),
        ({"pyproject.toml": f"# {'x' * 2**20}\n{PROJECT}"}, "shop.py", ""),
        ({}, "shop.py", ""),
        ({}, "site-packages/shop.py", ""),
    ],
)
def test_the_version_of_a_file(
    files: dict[str, str], file: str, version: str, tmp_path: Path
) -> None:
    write(tmp_path, **files)
    assert project_version(str(tmp_path / file)) == version


def test_the_root_is_around_all_packages(tmp_path: Path) -> None:
    write(tmp_path, **{"shop/__init__.py": "", "shop/inner/__init__.py": ""})
    assert find_root(str(tmp_path / "shop" / "inner" / "server.py")) == (tmp_path, "shop")


def test_clients_and_the_log_get_the_version_of_the_project(tmp_path: Path) -> None:
    write(tmp_path, **{"pyproject.toml": PROJECT, "shop.py": f"{FILE}server.run()\n"})
    discover = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        '"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
    )
    ended = subprocess.run(
        [sys.executable, "shop.py"],
        input=discover,
        env={"PYTHONPATH": SRC},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Starting shop MCP server v1.4.2\n" in ended.stderr
    assert '"serverInfo":{"name":"shop","version":"1.4.2"}' in ended.stdout


def test_a_version_that_is_given_is_taken(tmp_path: Path) -> None:
    write(tmp_path, **{"pyproject.toml": PROJECT})
    for source, version in ((FILE.replace("')", "', version='3')"), "3"), (FILE, "1.4.2")):
        namespace = {"__name__": "shop", "__file__": str(tmp_path / "shop.py")}
        exec(source, namespace)
        server = namespace["server"]
        assert isinstance(server, Server)
        assert server.features().info.version == version


@pytest.mark.parametrize("namespace", [{}, {"__file__": None}, {"__file__": "shop.py"}])
def test_code_without_a_project_makes_a_server_of_no_version(namespace: dict[str, object]) -> None:
    exec(FILE, namespace | {"__name__": "shop"} if namespace else namespace)
    namespace.setdefault("server", Server("shop"))
    server = namespace["server"]
    assert isinstance(server, Server)
    assert server.features().info.version == "0.0.0"
