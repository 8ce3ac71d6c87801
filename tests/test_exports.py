"""What `import concertino` gives and costs, and what is on the way from start to the first answer.

In real processes.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import concertino

PACKAGE = Path(concertino.__file__).parent
TEN_LINES = Path(__file__).parents[1] / "examples" / "calculator.py"
# Coverage starts itself in every child when it measures; what it imports is not ours.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
# An editable install is found by an import hook, and site may load whatever else is in the
# environment: not ours either.
FROM_SITE = "import sys; known = set(sys.modules)\n"


def run(code: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = CLEAN | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command,
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )


def modules(code: str, stdin: str = "") -> set[str]:
    """What `code` had imported when it ended, beyond what Python itself begins with."""
    report = (
        "import atexit; atexit.register(lambda: sys.stderr.write('MODULES ' + ' "
        "'.join(set(sys.modules) - known)))\n"
    )
    errors = run(FROM_SITE + report + code, stdin).stderr
    return set(errors.rpartition("MODULES ")[2].split())


def tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


LAZY_FACES = [
    "",
    ".backend",
    ".client",
    ".guards",
    ".proxy",
    ".server",
    ".transforms",
    ".transports",
    ".types",
]
FACES = [*LAZY_FACES, ".errors", ".library", ".orchestra"]


def face(name: str) -> ModuleType:
    return importlib.import_module(f"concertino{name}")


@pytest.mark.parametrize("package", LAZY_FACES)
def test_every_public_name_is_the_one_that_type_checkers_see(package: str) -> None:
    [block] = [
        node
        for node in ast.parse(Path(face(package).__file__ or "").read_text()).body
        if isinstance(node, ast.If)
    ]
    imports = [
        (alias, node.module or "")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    # Type checkers take a name for public only in the form `import name as name`.
    assert all(alias.asname == alias.name for alias, _ in imports)
    imported = {alias.name: module for alias, module in imports}
    assert sorted(imported) == sorted(face(package).__all__)
    for name, module in imported.items():
        assert getattr(face(package), name) is getattr(importlib.import_module(module), name)
        assert name in importlib.import_module(module).__all__


@pytest.mark.parametrize("package", LAZY_FACES)
def test_dir_shows_the_public_names(package: str) -> None:
    assert set(face(package).__all__) <= set(dir(face(package)))


@pytest.mark.parametrize("package", LAZY_FACES)
def test_a_star_import_gives_the_public_names(package: str) -> None:
    scope: dict[str, object] = {}
    exec(f"from concertino{package} import *", scope)
    assert set(scope) - {"__builtins__"} == set(face(package).__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Orchestra'") as error:
        concertino.Orchestra  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    # From these Python makes `Did you mean: ...` in a traceback.
    assert (error.value.name, error.value.obj) == ("Orchestra", concertino)


def test_a_module_s_list_holds_only_what_is_there() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(
            ("concertino", *path.relative_to(PACKAGE).with_suffix("").parts)
        ).removesuffix(".__init__")
        if name == "concertino.__main__":
            continue
        module = importlib.import_module(name)
        missing = [each for each in getattr(module, "__all__", ()) if not hasattr(module, each)]
        assert not missing, name


def test_importing_the_package_imports_nothing() -> None:
    allowed = {"concertino", "concertino.loading", "__future__", "gc", "importlib"}
    assert modules("import concertino") <= allowed | _of("importlib")


def test_the_exceptions_cost_no_event_loop() -> None:
    assert not tops(modules("from concertino import ToolError, RpcError")) & {"asyncio", "msgspec"}


def test_the_guards_load_neither_an_event_loop_nor_opentelemetry() -> None:
    assert not tops(modules("import concertino.guards")) & {"asyncio", "opentelemetry", "msgspec"}
    assert "opentelemetry" not in tops(modules("from concertino.guards import Guard, Metrics"))


REQUESTS = [
    {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
    {"id": 2, "method": "tools/list"},
    {"id": 3, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}},
]
LINES = [json.dumps({"jsonrpc": "2.0", **request}) + "\n" for request in REQUESTS]
STDIN = "".join(LINES)

# Every module of ours that a small server imports before its first response. Each takes 0.1 to 0.2
# ms of the start: one that is added here must be needed that early.
BEFORE_THE_FIRST_RESPONSE = {
    "": "backend decode_errors errors jsonrpc loading logs near_names protocol runtime schema "
    "server transports types",
    "backend": "interface serving_hosts",
    "jsonrpc": "batches framing incoming_requests invalid_input limits messages outgoing_requests "
    "peer unread_results",
    "logs": "formats handler redact secret_checks stderr_redirect writer",
    "protocol": "call call_notifications lifecycle request_profile revisions session "
    "session_methods subscriptions wire_results",
    "runtime": "connection_end entry host output_flow process server_connection shutdown "
    "spare_descriptor tasks",
    "schema": "arguments constraints docstrings json_values return_values signature type_schema "
    "value_results violations",
    "server": "functions lazy_features registry server server_backend settings tool_errors "
    "tool_registration tools",
    "transports": "output_buffer pipe pipe_capacity stdio",
    "types": "results",
}
# Those that a list of tools and the first call add. Some are imported a moment later.
WITH_THE_FIRST_CALL = {
    "": "excerpts token_estimate",
    "backend": "call_hooks callback_calls",
    "protocol": "host_limits object_schemas",
    "runtime": "call_answers call_runner context loop_watcher result_sizes result_turns "
    "running_calls",
    "server": "host_warnings",
    "types": "result_checks",
}


def full_names(modules_of: dict[str, str]) -> set[str]:
    return {
        ".".join(filter(None, ("concertino", package, name)))
        for package, names in modules_of.items()
        for name in names.split()
    }


def test_before_the_first_response_only_what_it_needs_is_imported() -> None:
    ours = {name for name in modules(TEN_LINES.read_text(), LINES[0]) if "concertino" in name}
    assert ours == full_names(BEFORE_THE_FIRST_RESPONSE) | {"concertino"}


def test_a_list_and_a_call_of_tools_import_little_more() -> None:
    ours = {name for name in modules(TEN_LINES.read_text(), STDIN) if "concertino" in name}
    start = full_names(BEFORE_THE_FIRST_RESPONSE) | {"concertino"}
    assert ours >= start
    assert ours - start <= full_names(WITH_THE_FIRST_CALL)


def test_no_annotation_is_compiled_before_the_first_call_has_its_answer() -> None:
    """msgspec compiles each annotation of a Struct that is a string when it decodes the Struct."""
    record = (
        "import asyncio, msgspec\n"
        "compiled = []\n"
        "def record(event, args):\n"
        "    if event == 'compile' and args[1] == '<string>':\n"
        "        compiled.append(args[0])\n"
        "sys.addaudithook(record)\n"
        "atexit.register(lambda: sys.stderr.write(f'COMPILED {compiled}'))\n"
    )
    errors = run("import atexit, sys\n" + record + TEN_LINES.read_text(), STDIN).stderr
    assert errors.rpartition("COMPILED ")[2] == "[]"


# msgspec imports it where it is installed, as it is here for other packages. Ours does not.
FOREIGN = {"concertino", "msgspec", "typing_extensions"}


def test_from_start_to_answers_only_the_standard_library_and_msgspec_are_imported() -> None:
    """`python calculator.py`: each import is start-up time that every user pays, every time."""
    imported = modules(TEN_LINES.read_text(), STDIN)
    assert "concertino.server.server" in imported
    # What few servers use.
    rare = {"access", "dependencies", "dependency_scope", "lifespan", "options", "resources"}
    assert not imported & {f"concertino.server.{name}" for name in rare}
    assert tops(imported) - sys.stdlib_module_names <= FOREIGN
    # Of the standard library, what costs milliseconds and is not needed.
    assert not imported & {
        "argparse",
        "importlib.metadata",
        "email",
        "json",
        "fractions",
        "shutil",
        "tempfile",
    }


def test_the_command_line_adds_argparse_and_nothing_foreign() -> None:
    code = (
        f"sys.argv = ['concertino', 'serve', {str(TEN_LINES)!r}]\n"
        f"from concertino.cli import main\nmain()"
    )
    imported = modules(code, STDIN)
    assert "argparse" in imported
    assert tops(imported) - sys.stdlib_module_names <= FOREIGN | {"calculator"}
    assert not imported & {"importlib.metadata", "email", "json", "fractions", "tempfile"}


def test_a_proxy_without_options_imports_neither_argparse_nor_what_only_mistakes_need() -> None:
    """A host waits for its start: argparse takes 3 ms of it, and 1 MB."""
    server = [sys.executable, str(TEN_LINES)]
    code = (
        f"sys.argv = ['concertino', 'proxy', '--', *{server}]\n"
        f"from concertino.cli import main\nmain()"
    )
    imported = modules(code, STDIN)
    assert "concertino.proxy.proxy" in imported
    assert tops(imported) - sys.stdlib_module_names <= FOREIGN
    assert not imported & {"argparse", "difflib", "email", "json", "pathlib", "random", "shutil"}
    assert "concertino.cli.suggestions" not in imported


def _of(*names: str) -> set[str]:
    """What importing these brings along."""
    return modules("".join(f"import {name}\n" for name in names))


# What the extras install. `google` is protobuf.
OPTIONAL = (
    "aioquic",
    "bpe_openai",
    "cryptography",
    "google",
    "jsonschema",
    "opentelemetry",
    "tantivy",
    "watchfiles",
    "yaml",
)
WITHOUT_EXTRAS = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
for name in [name for name in sys.modules if name.partition(".")[0] in {OPTIONAL}]:
    del sys.modules[name]
"""
ORCHESTRA = re.compile(r"pip install .*\[orchestra\]'\s*\Z")


@pytest.mark.parametrize(
    "code",
    [
        "import concertino; assert hasattr(concertino, 'Plugin')",
        "import concertino; assert hasattr(concertino, 'Library')",
        "from concertino import *; assert Plugin.tool and Library",
        "import concertino; help(concertino)",
        "import concertino; help(concertino.Plugin); help(concertino.Library)",
        "import concertino, inspect; assert 'Plugin' in dict(inspect.getmembers(concertino))",
        "import concertino.guards; help(concertino.guards); help(concertino.guards.Telemetry)",
        "from concertino.guards import *; assert Telemetry and Guard",
    ],
)
def test_the_public_names_need_no_extra(code: str) -> None:
    run(WITHOUT_EXTRAS + code)


@pytest.mark.parametrize("package", FACES)
def test_inspect_finds_the_members_of_every_public_package_without_extras(package: str) -> None:
    code = (
        "import importlib, inspect\n"
        f"package = importlib.import_module('concertino{package}')\n"
        "members = dict(inspect.getmembers(package))\n"
        "assert set(getattr(package, '__all__', ())) <= set(members)\n"
    )
    run(WITHOUT_EXTRAS + code)


@pytest.mark.parametrize(
    "code",
    [
        "from concertino import Plugin; Plugin('tools.greeter')",
        "import concertino.orchestra.hub",
        "import concertino.orchestra.certificates",
        "import concertino.orchestra.quic_link",
        "from concertino.orchestra.plugins_file import read_plugins; read_plugins('plugins.yaml')",
    ],
)
def test_what_needs_the_extra_orchestra_names_it(code: str) -> None:
    caught = f"try:\n    {code}\nexcept ImportError as exc:\n    print(exc)"
    assert ORCHESTRA.search(run(WITHOUT_EXTRAS + caught).stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["orchestrate", "plugins.yaml"],
        ["bridge"],
        ["certs", "show"],
        ["plugin", "markdown", "--manifest"],
        ["plugin", "sqlite", "--manifest"],
    ],
)
def test_a_command_that_needs_the_extra_orchestra_names_it(arguments: list[str]) -> None:
    code = f"sys.argv = ['concertino', *{arguments}]\nfrom concertino.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code],
        env=CLEAN | {"PYTHONPATH": str(PACKAGE.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert ORCHESTRA.search(done.stderr)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("FastMCP", "Server"),
        ("MCPServer", "Server"),
        ("Image", "image"),
        ("Audio", "audio"),
        ("StdioServerParameters", "ServerParameters"),
        ("ClientSession", "Client"),
    ],
)
def test_the_names_of_other_packages_are_answered_with_ours(name: str, ours: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(f"from concertino import {name}")
    start = f"cannot import name '{name}' from 'concertino'; write `from concertino import {ours}`"
    assert str(raised.value).startswith(start)
    assert hasattr(concertino, ours)
