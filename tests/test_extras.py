"""What needs an extra says so in one sentence, with the command that installs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

import concertino
from concertino.cli.version import EXTRAS
from concertino.installation import PACKAGES, extra_install_command, missing_extra

ROOT = Path(__file__).parents[1]
BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
# Arguments of `concertino` -> what needs an extra, and the extra.
HUB = ("a hub or plugin", "orchestra")
COMMANDS = {
    "orchestrate plugins.yaml": HUB,
    "bridge": HUB,
    "bridge --orchestrator-addr unix:hub.sock": HUB,
    "serve plugins.yaml": HUB,
    "plugin markdown": HUB,
    "plugin markdown --manifest": HUB,
    "plugin sqlite": HUB,
    "plugin sqlite --manifest": HUB,
    "certs init --certs-dir certs": HUB,
    "certs issue orchestrator --certs-dir certs": HUB,
    "certs show --certs-dir certs": HUB,
    "certs renew --certs-dir certs": HUB,
    "serve notes": ("front matter", "library"),
    "serve --resources notes/resources": ("front matter", "library"),
    "lint notes": ("front matter", "library"),
    "lint plain": ("searching a library", "library"),
    "search notes word": ("front matter", "library"),
    "search plain word": ("searching a library", "library"),
    "search plain word --tokenizer o200k_base": ("the tokenizer o200k_base", "tokens"),
    "lint plain --tokenizer cl100k_base": ("the tokenizer cl100k_base", "tokens"),
    "serve server.py --otel": ("reporting spans and metrics", "otel"),
    "bridge --otel": ("reporting spans and metrics", "otel"),
    "serve server.py --http 127.0.0.1:0": ("HTTP", "http"),
    "tools -- http://127.0.0.1:1/mcp": ("HTTP", "http"),
    "proxy -- https://127.0.0.1:1/mcp": ("HTTP", "http"),
    "proxy -- wss://127.0.0.1:1/mcp": ("HTTP", "http"),
    "serve schema.py": ("a hand-written input_schema", "validate"),
    "serve pattern.py": ("A pattern as it is", "validate"),
}
# Code -> the same, for what Python programs use.
ENTRIES = {
    "from concertino import Plugin; Plugin('tools.greeter')": HUB,
    "import concertino.orchestra.hub": HUB,
    "import concertino.orchestra.certificates": HUB,
    "import concertino.orchestra.authority": HUB,
    "import concertino.orchestra.bridge": HUB,
    "import concertino.orchestra.quic_link": HUB,
    "from concertino.orchestra.plugins_file import read_plugins; read_plugins('plugins.yaml')": HUB,
    "from concertino import Client; Client(['x'], validate=True)": ("validate=True", "validate"),
    "from concertino.http import HttpServer": ("HTTP", "http"),
    "import concertino.http.server": ("HTTP", "http"),
    "from concertino import Server; Server('s').run(http='127.0.0.1:0')": ("HTTP", "http"),
    "from concertino.guards.telemetry import telemetry; telemetry()": (
        "reporting spans and metrics",
        "otel",
    ),
    "from concertino.guards import Telemetry; Telemetry(None)": (
        "reporting spans and metrics",
        "otel",
    ),
    "from concertino import Library; import asyncio\n"
    "async def read():\n"
    "    from concertino import Client\n"
    "    async with Client(Library('notes/resources')) as client: await client.list_resources()\n"
    "asyncio.run(read())": ("front matter", "library"),
}
SERVER = "from concertino import Server\nserver = Server('s')\n"
FILES = {
    "plugins.yaml": "plugins: []\n",
    "notes/resources/a.md": "---\ntitle: A\n---\nA word.\n",
    "plain/resources/a.md": "# A\n\nA word.\n",
    "server.py": SERVER,
    "schema.py": SERVER
    + "server.add_tool(lambda x: x, name='a', input_schema={'type': 'object'})\n",
    "pattern.py": SERVER
    + "from typing import Annotated\nfrom msgspec import Meta\n"
    + "@server.tool\ndef a(x: Annotated[str, Meta(pattern='^(a+)+$')]) -> str: return x\n",
}


def test_the_version_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert list(EXTRAS) == [name for name in extras if name != "all"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extras")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with concertino, msgspec and nothing else."""
    packages = tmp_path_factory.mktemp("packages")
    for module in (concertino, msgspec):
        source = Path(module.__file__).parent
        (packages / source.name).symlink_to(source)
    return packages


def run(folder: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, with the packages in a folder only if there is one."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths = [path] if path else [Path(concertino.__file__).parents[1]]
    return subprocess.run(
        [sys.executable, *(["-S"] if path else []), *words],
        cwd=folder,
        env={**inherited, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def sentence(feature: str, extra: str) -> re.Pattern[str]:
    """Return the sentence. The command depends on how this interpreter was installed."""
    text = re.escape(f"{feature} needs the extra {extra!r} ({PACKAGES[extra]}): ")
    return re.compile(rf"{text}.*pip install .*\[{extra}\]'")


@pytest.mark.parametrize(("command", "need"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_names_the_extra(
    command: str, need: tuple[str, str], folder: Path, packages: Path
) -> None:
    done = run(folder, "-m", "concertino", *command.split(), path=packages)
    assert sentence(*need).search(done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2)


@pytest.mark.parametrize(("code", "need"), ENTRIES.items(), ids=range(len(ENTRIES)))
def test_python_code_gets_an_error_that_names_the_extra(
    code: str, need: tuple[str, str], folder: Path, packages: Path
) -> None:
    done = run(folder, "-c", code, path=packages)
    assert sentence(*need).search(done.stderr.splitlines()[-1]), done.stderr
    assert done.returncode == 1


# `google` is protobuf.
@pytest.mark.parametrize("module", ["cryptography", "google", "yaml"])
@pytest.mark.parametrize("command", ["orchestrate", "serve"])
def test_one_missing_package_of_an_extra_is_enough(module: str, command: str, folder: Path) -> None:
    code = f"from concertino.cli import main\nmain([{command!r}, 'plugins.yaml'])"
    done = run(folder, "-c", BLOCK.format(blocked=module) + code)
    assert missing_extra(*HUB) in done.stderr


def test_uvloop_is_an_extra_of_its_own(folder: Path) -> None:
    words = ["serve", "server.py", "--http", "127.0.0.1:0", "--uvloop"]
    code = f"from concertino.cli import main\nmain({words!r})"
    done = run(folder, "-c", BLOCK.format(blocked="uvloop") + code)
    assert sentence("--uvloop", "uvloop").search(done.stderr), done.stderr
    assert done.returncode == 2


def test_the_packages_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        extra: sorted(re.match(r"[\w-]+", package)[0] for package in packages)  # type: ignore[index]
        for extra, packages in project["optional-dependencies"].items()
    }
    named = {extra: sorted(text.split(", ")) for extra, text in PACKAGES.items()}
    assert {extra: declared[extra] for extra in named} == named


def test_the_sentence() -> None:
    assert missing_extra("searching a library", "library") == (
        "searching a library needs the extra 'library' (PyYAML, tantivy): "
        + extra_install_command("library")
    )
