"""Everything the benchmark needs, built in bench/.work: virtual environments, Node packages, C and
Go programs.

Each place is built once and again when what it is made of changes (a stamp file holds that).
Nothing outside .work is written. A place that cannot be built holds the reason, and its rows are
left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from versions import GO_MODULES, NODE_PACKAGES, PYTHON_PACKAGES

__all__ = [
    "WORK",
    "BuildError",
    "Interpreter",
    "Place",
    "build_places",
    "build_tool",
    "describe_interpreter",
    "server_environment",
]

BENCH = Path(__file__).resolve().parent
REPOSITORY = BENCH.parent
WORK = BENCH / ".work"
SERVERS = BENCH / "servers"
BUILD_LIMIT_S = 600
GO_PROGRAMS = {
    "go_sdk": SERVERS / "go_sdk" / "main.go",
    "go_http": BENCH / "http_servers" / "go" / "main.go",
}


@dataclass
class Place:
    """Where a family of servers lives. missing: why it does not, in one line; None when it does."""

    words: dict[str, str] = field(default_factory=dict)  # for Row.command
    versions: dict[str, str] = field(default_factory=dict)
    missing: str | None = None


@dataclass(frozen=True)
class Interpreter:
    path: str
    version: str
    # built with --enable-optimizations; without it everything in Python is slower by a quarter or
    # so
    optimised: bool


class BuildError(Exception):
    """A place could not be built; the message is one line for the table's footnotes."""


def describe_interpreter(path: str) -> Interpreter:
    code = (
        "import platform, sys, sysconfig;"
        "print(platform.python_implementation(), platform.python_version());"
        "print('--enable-optimizations' in (sysconfig.get_config_var('CONFIG_ARGS') or ''))"
    )
    version, optimised = run([path, "-c", code]).splitlines()
    return Interpreter(path, version, optimised == "True")


def build_tool() -> Path:
    """The load generator, and the C floor beside it. Raises BuildError without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError(
            "no gcc: the load generator is a C program, so nothing can be measured without it"
        )
    binaries = WORK / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    for target, sources in (
        ("load", sorted((BENCH / "load").glob("*.c"))),
        ("floor_echo", [SERVERS / "floor_echo.c"]),
    ):
        run([compiler, "-O2", "-Wall", "-Wextra", "-o", str(binaries / target), *map(str, sources)])
    return binaries / "load"


def build_places(
    names: Iterable[str], interpreter: Interpreter, say: Callable[[str], None]
) -> dict[str, Place]:
    """Build the named places. Never raises BuildError: the place says what is missing."""
    places: dict[str, Place] = {}
    for name in dict.fromkeys(names):
        try:
            if name == "c":
                places[name] = Place({"bin": str(WORK / "bin")})
            elif name == "node":
                places[name] = build_node(say)
            elif name in GO_PROGRAMS:
                places[name] = build_go(name, say)
            elif name == "rmcp":
                places[name] = build_rust(say)
            else:
                places[name] = build_environment(name, interpreter, say)
        except BuildError as error:
            places[name] = Place(missing=str(error))
    return places


def build_environment(name: str, interpreter: Interpreter, say: Callable[[str], None]) -> Place:
    folder = WORK / interpreter.version.replace(" ", "-").lower() / name
    python = folder / "bin" / "python"
    packages = PYTHON_PACKAGES[name]
    if not is_fresh(folder, repr((interpreter, packages))):
        say(f"installing {' '.join(packages)} for {interpreter.version}")
        shutil.rmtree(folder, ignore_errors=True)
        run([interpreter.path, "-m", "venv", str(folder)])
        run([str(python), "-m", "pip", "install", "--quiet", "--no-input", *packages])
        stamp(folder, repr((interpreter, packages)))
    if name == "concertino":
        install_checkout(folder, python, say)
    listed = json.loads(run([str(python), "-m", "pip", "list", "--format", "json"]))
    versions = {
        entry["name"]: entry["version"]
        for entry in listed
        if entry["name"] not in ("pip", "setuptools")
    }
    words = {"python": str(python), "scripts": str(folder / "bin"), "servers": str(SERVERS)}
    return Place(words, versions)


def install_checkout(folder: Path, python: Path, say: Callable[[str], None]) -> None:
    """concertino as users install it: built into a wheel, bytecode compiled, not editable."""
    digest = hashlib.sha256((REPOSITORY / "pyproject.toml").read_bytes())
    for path in sorted((REPOSITORY / "src").rglob("*.py")):
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes())
    inner = folder / "checkout"
    if not is_fresh(inner, digest.hexdigest()):
        say("installing concertino from this checkout")
        run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-input",
                "--force-reinstall",
                "--no-deps",
                str(REPOSITORY),
            ]
        )
        inner.mkdir(exist_ok=True)
        stamp(inner, digest.hexdigest())
    run([str(python), "-c", "import concertino; concertino.Server"])


def build_node(say: Callable[[str], None]) -> Place:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise BuildError("node or npm is not installed")
    folder = WORK / "node"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = json.dumps(
        {"private": True, "type": "module", "dependencies": NODE_PACKAGES}, indent=2
    )
    if not is_fresh(folder, wanted):
        say(f"installing {' '.join(NODE_PACKAGES)}")
        (folder / "package.json").write_text(wanted)
        run(
            [
                npm,
                "install",
                "--prefix",
                str(folder),
                "--no-audit",
                "--no-fund",
                "--loglevel",
                "error",
            ]
        )
        stamp(folder, wanted)
    for source in SERVERS.glob("*.mjs"):  # modules are looked up from where the file lies
        shutil.copy(source, folder)
    lock = json.loads((folder / "package-lock.json").read_text())
    versions = {name: lock["packages"][f"node_modules/{name}"]["version"] for name in NODE_PACKAGES}
    return Place(
        {"node": node, "servers": str(folder)},
        {"node": run([node, "--version"]).strip(), **versions},
    )


def build_go(program: str, say: Callable[[str], None]) -> Place:
    """A Go server, built without debug information as its users ship one.

    program: a key of GO_PROGRAMS, and the name of the executable.
    """
    go = shutil.which("go")
    if go is None:
        raise BuildError("go is not installed")
    version = run([go, "env", "GOVERSION"]).strip().removeprefix("go")
    source = GO_PROGRAMS[program]
    folder = WORK / program
    folder.mkdir(parents=True, exist_ok=True)
    wanted = json.dumps([version, GO_MODULES, source.read_text()])
    if not is_fresh(folder, wanted):
        say(f"building {program} with {' '.join(GO_MODULES)}")
        required = "".join(f"require {name} {tag}\n" for name, tag in GO_MODULES.items())
        (folder / "go.mod").write_text(f"module bench\n\ngo 1.25\n\n{required}")
        shutil.copy(source, folder)
        run([go, "-C", str(folder), "mod", "tidy"])
        target = str(WORK / "bin" / program)
        run([go, "-C", str(folder), "build", "-ldflags=-s -w", "-o", target, "."])
        stamp(folder, wanted)
    tags = {name: tag.removeprefix("v") for name, tag in GO_MODULES.items()}
    return Place({"bin": str(WORK / "bin")}, {"go": version, **tags})


def build_rust(say: Callable[[str], None]) -> Place:
    """The server of rmcp, built with optimisations."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise BuildError("cargo is not installed")
    source = BENCH / "http_servers" / "rmcp"
    folder = WORK / "rmcp_http"
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    wanted = json.dumps([path.read_text() for path in files])
    target = folder / "release" / "rmcp_http"
    if not is_fresh(folder, wanted):
        say("building the Rust server, which takes minutes")
        manifest = str(source / "Cargo.toml")
        options = ["--release", "--locked", "--manifest-path", manifest]
        run([cargo, "build", "--quiet", *options, "--target-dir", str(folder)])
        stamp(folder, wanted)
    return Place({"bin": str(target.parent)})


def server_environment() -> dict[str, str]:
    """What a server sees of the environment: nothing that is somebody's own setting."""
    home = WORK / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "CONCERTINO_MAX_MESSAGE_BYTES": str(64 * 2**20),  # for the 10 MB echo
    }


def is_fresh(folder: Path, content: str) -> bool:
    path = folder / ".stamp"
    return path.exists() and path.read_text() == content


def stamp(folder: Path, content: str) -> None:
    (folder / ".stamp").write_text(content)


def run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            stdin=subprocess.DEVNULL,
            cwd=make_work(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "Error: " in line or "ERROR: " in line]
        raise BuildError(f"{Path(command[0]).name}: {(errors or said or ['failed'])[-1][:300]}")
    return done.stdout


def make_work() -> Path:
    WORK.mkdir(exist_ok=True)
    return WORK
