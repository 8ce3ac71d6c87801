"""The forty mistakes that beginners make most often, and exactly what is said about each.

A message has up to three parts: what is wrong, where, and what to do. The level of a mistake is the
number of parts that its message has. A row quotes each part, and the test finds the quotation in
the output. All forty must reach level 2, and thirty level 3.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from mistakes import ADD, END, HEAD, IMPORTING, TRACEBACK, Mistake, run_mistake

CALCULATOR = {
    "calc.py": f"""{HEAD}{ADD}
@server.tool
def divide(a: float, b: float, digits: int = 2) -> float:
    return round(a / b, digits)
@server.resource("config://app")
def config() -> str:
    return "here"
{END}"""
}
SERVER = "-- python calc.py"


class Case(NamedTuple):
    """A mistake with the parts of what is said about it; "" for a part that is not said."""

    what: str
    where: str
    to_do: str
    mistake: Mistake

    @property
    def level(self) -> int:
        return sum(map(bool, (self.what, self.where, self.to_do)))


def calc(source: str) -> dict[str, str]:
    """Return the file of a server with a tool."""
    return {"calc.py": HEAD + source + END}


def tool_traceback(line: int) -> str:
    return f"concertino call: the server's log has a traceback from calc.py:{line}; -v shows it\n"


WRITING = [
    Case(
        "no parameter has a type",
        "calc.py:3",
        "write `def add(a: ..., b: ...)` with types",
        Mistake(
            "no annotations",
            calc(ADD.replace(": int", "").replace(" -> int", "")),
            "python calc.py",
            0,
            "add() (calc.py:3): no parameter has a type, so models are not told any, and every "
            "JSON value is accepted; write `def add(a: ..., b: ...)` with types (reported once)\n",
        ),
    ),
    Case(
        "clients are asked for 'ctx'",
        "calc.py:3",
        "write `ctx: Context`",
        Mistake(
            "a parameter for the context without its type",
            calc("@server.tool\nasync def add(a: int, ctx) -> int:\n    return a\n"),
            "python calc.py",
            0,
            "add() (calc.py:3): clients are asked for 'ctx', since it has no annotation; write "
            "`ctx: Context` to get the context of the call (from concertino import Context)\n",
        ),
    ),
    Case(
        "there is no such parameter",
        "calc.py:3",
        "did you mean 'count'?",
        Mistake(
            "a docstring that describes another parameter",
            calc(
                "@server.tool\ndef double(count: int) -> int:\n"
                '    """Double.\n\n    Args:\n        cuont: a number.\n    """\n'
                "    return 2 * count\n"
            ),
            "python calc.py",
            0,
            "double() (calc.py:3): the docstring describes 'cuont', and there is no such "
            "parameter; did you mean 'count'?\n",
        ),
    ),
    Case(
        "nothing fills its parameter 'self'",
        'calc.py", line 3',
        "remove the parameter",
        Mistake(
            "a parameter self without a class",
            calc("@server.tool\ndef add(self, a: int) -> int:\n    return a\n"),
            "python calc.py",
            1,
            f'{TRACEBACK}  File "FOLDER/calc.py", line 3, in <module>\n    @server.tool\n'
            "concertino.errors.RegistrationError: add: add() is no method, so nothing fills its "
            "parameter 'self'; remove the parameter, or give it a type if clients are meant to "
            "fill it\n",
        ),
    ),
    Case(
        "got an unexpected keyword argument 'nmae'",
        "calc.py:3",
        "did you mean 'name'?",
        Mistake(
            "a mistyped option of a tool",
            calc(ADD.replace("tool", "tool(nmae='plus')")),
            "concertino serve calc.py",
            1,
            f"{IMPORTING} calc.py: TypeError: add: got an unexpected keyword argument 'nmae'; did "
            "you mean 'name'? (calc.py:3)\n[INFO] [concertino] --traceback shows where\n",
        ),
    ),
    Case(
        "a tool named 'add' is already registered",
        "calc.py:6",
        "pass name=... or call remove_tool('add') first",
        Mistake(
            "two tools with one name",
            calc(ADD + ADD),
            "concertino serve calc.py",
            1,
            f"{IMPORTING} calc.py: RegistrationError: a tool named 'add' is already registered "
            "(calc.py:3); pass name=... or call remove_tool('add') first (calc.py:6)\n"
            "[INFO] [concertino] --traceback shows where\n",
        ),
    ),
    Case(
        "expected 1 to 128 of A-Z a-z 0-9 _ . - , got 'add numbers'",
        "calc.py:3",
        "pass name=...",
        Mistake(
            "a name that no client accepts",
            calc(ADD.replace("tool", "tool(name='add numbers')")),
            "concertino serve calc.py",
            1,
            f"{IMPORTING} calc.py: RegistrationError: tool name: expected 1 to 128 of "
            "A-Z a-z 0-9 _ . - , got 'add numbers'; pass name=... (calc.py:3)\n"
            "[INFO] [concertino] --traceback shows where\n",
        ),
    ),
]

STARTING = [
    Case(
        "no concertino.Server found at its top level",
        "main() makes one in line 3",
        "move it and its tools out of the function",
        Mistake(
            "a server inside of main()",
            {
                "calc.py": "from concertino import Server\ndef main():\n"
                "    server = Server('calculator')\n"
            },
            "concertino serve calc.py",
            2,
            "[ERROR] [concertino] calc.py: no concertino.Server found at its top level; main() "
            "makes one in line 3: move it and its tools out of the function\n",
        ),
    ),
    Case(
        "ended without serving it: nothing calls run()",
        "calc.py",
        "Add at its end",
        Mistake(
            "a script that calls no run()",
            {"calc.py": HEAD + ADD},
            "python calc.py",
            0,
            "calc.py has made a server and ended without serving it: nothing calls run(). Add at "
            'its end:\n\nif __name__ == "__main__":\n    server.run()\n\n'
            "or start it with: concertino serve calc.py\n",
        ),
    ),
    Case(
        "server.run() called while test_calc.py imports it",
        "calc.py:3",
        "put it under `if __name__ == '__main__':`",
        Mistake(
            "a bare run() in a module that a test imports",
            {"calc.py": f"{HEAD}server.run()\n", "test_calc.py": "from calc import server\n"},
            "python test_calc.py",
            1,
            f'{TRACEBACK}  File "FOLDER/test_calc.py", line 1, in <module>\n'
            "    from calc import server\n"
            '  File "FOLDER/calc.py", line 3, in <module>\n    server.run()\n'
            "RuntimeError: calc.py:3: server.run() called while test_calc.py imports it; put it "
            "under `if __name__ == '__main__':`\n",
        ),
    ),
    Case(
        "run() cannot be called while an event loop runs",
        'calc.py", line 5, in main',
        "call it outside of asyncio.run(...)",
        Mistake(
            "run() inside of an event loop",
            {
                "calc.py": f"import asyncio\n{HEAD}async def main():\n    server.run()\n"
                "asyncio.run(main())\n"
            },
            "python calc.py",
            1,
            f'{TRACEBACK}  File "FOLDER/calc.py", line 6, in <module>\n    asyncio.run(main())\n'
            '  File "FOLDER/calc.py", line 5, in main\n    server.run()\n'
            "RuntimeError: run() cannot be called while an event loop runs, since it runs one "
            "itself: call it outside of asyncio.run(...), or await "
            "concertino.serve(server, connection)\n",
        ),
    ),
    Case(
        "attempted relative import with no known parent package",
        "server.py:1",
        "concertino serve pkg.server:calc",
        Mistake(
            "relative imports in a file that is served by its path",
            {
                "pkg/__init__.py": "",
                "pkg/names.py": "",
                "pkg/server.py": "from . import names\n" + HEAD.replace("server =", "calc ="),
            },
            "concertino serve pkg/server.py",
            1,
            f"{IMPORTING} pkg/server.py: ImportError: attempted relative import with no known "
            "parent package (server.py:1); serve it as a part of its package: "
            "concertino serve pkg.server:calc\n[INFO] [concertino] --traceback shows where\n",
        ),
    ),
    Case(
        "expected file.py, file.py:attribute",
        "pkg.server:",
        "did you mean pkg.server:server?",
        Mistake(
            "a module without an attribute",
            {"pkg/server.py": HEAD},
            "concertino serve pkg.server",
            2,
            "[ERROR] [concertino] pkg.server: expected file.py, file.py:attribute, "
            "package.module:attribute or a folder; did you mean pkg.server:server?\n",
        ),
    ),
    Case(
        "expected file.py, file.py:attribute",
        "calculator:",
        "did you mean calculator.py?",
        Mistake(
            "a file without .py",
            {"calculator.py": HEAD},
            "concertino serve calculator",
            2,
            "[ERROR] [concertino] calculator: expected file.py, file.py:attribute, "
            "package.module:attribute or a folder; did you mean calculator.py?\n",
        ),
    ),
    Case(
        "no such file",
        "src/calculater.py",
        "did you mean src/calculator.py?",
        Mistake(
            "a mistyped path",
            {"src/calculator.py": HEAD},
            "concertino serve src/calculater.py",
            2,
            "[ERROR] [concertino] src/calculater.py: no such file; did you mean "
            "src/calculator.py?\n",
        ),
    ),
    Case(
        "expected ':'",
        "calc.py:4",
        # Python says what it expects, and marks the place.
        "",
        Mistake(
            "a syntax error",
            {"calc.py": HEAD + "@server.tool\ndef add(a: int, b: int) -> int\n    return a + b\n"},
            "concertino serve calc.py",
            1,
            f"{IMPORTING} calc.py: SyntaxError: expected ':' (calc.py:4)\n"
            '      File "FOLDER/calc.py", line 4\n'
            "        def add(a: int, b: int) -> int\n"
            "                                      ^\n"
            "    SyntaxError: expected ':'\n",
        ),
    ),
    Case(
        "No module named 'no_such_package'",
        "calc.py:3",
        "install the package that has it: INSTALL PACKAGE",
        Mistake(
            "a dependency that is not installed",
            {"calc.py": HEAD + "import no_such_package\n"},
            "concertino serve calc.py",
            1,
            f"{IMPORTING} calc.py: ModuleNotFoundError: No module named 'no_such_package' "
            "(calc.py:3); install the package that has it: INSTALL PACKAGE\n"
            "[INFO] [concertino] --traceback shows where\n",
        ),
    ),
    Case(
        "`python calc.py` did not answer within 3 s",
        "it stands at calc.py:3, in load()",
        "put what takes long into a tool or a function of @server.lifespan",
        Mistake(
            "a start that hangs",
            {"calc.py": f"import time\ndef load() -> None:\n    time.sleep(600)\nload()\n{HEAD}"},
            f"concertino tools --connect-timeout-s 3 {SERVER}",
            4,
            "concertino tools: `python calc.py` did not answer within 3 s; it stands at calc.py:3, "
            "in load()\n"
            "  a server answers once its run() is called; put what takes long into a tool or a "
            "function of @server.lifespan\n"
            "  --connect-timeout-s S waits longer; -v shows what the server writes to stderr\n",
        ),
    ),
    Case(
        "unrecognized arguments",
        "--port",
        "to serve over HTTP: --http 127.0.0.1:8080",
        Mistake(
            "--port",
            CALCULATOR,
            "concertino serve calc.py --port 8080",
            2,
            "concertino serve: unrecognized arguments: --port\n"
            "  to serve over HTTP: --http 127.0.0.1:8080; to listen on a socket: "
            "--tcp 127.0.0.1:8080\n",
        ),
    ),
    Case(
        "expected HOST:PORT",
        "--http 8000",
        "write --http 127.0.0.1:8000",
        Mistake(
            "--http with a port alone",
            CALCULATOR,
            "concertino serve calc.py --http 8000",
            2,
            "concertino serve: --http 8000: expected HOST:PORT, or unix:PATH\n"
            "  write --http 127.0.0.1:8000; port 0 takes a free one\n",
        ),
    ),
    Case(
        "no tool has such a name, so clients see no tools",
        "allow 'ad'",
        "there are: add, divide",
        Mistake(
            "a pattern of --allow that matches nothing",
            CALCULATOR,
            "concertino serve calc.py --allow ad",
            0,
            "[WARN] [guards] allow 'ad': no tool has such a name, so clients see no tools; there "
            "are: add, divide\n",
        ),
    ),
    Case(
        "none of its text is shown",
        "--max-result-bytes 9",
        "write 4096",
        Mistake(
            "--max-result-bytes that leaves nothing",
            CALCULATOR,
            "concertino serve calc.py --max-result-bytes 9",
            0,
            "[WARN] [concertino] --max-result-bytes 9: a larger result is replaced by a link, and "
            "none of its text is shown; write 4096 to show 3072 bytes of it\n",
        ),
    ),
    Case(
        "this server expects JSON-RPC messages",
        "add 1 2",
        "to call a tool: concertino call NAME KEY=VALUE",
        Mistake(
            "words typed into a waiting server",
            CALCULATOR,
            "concertino serve calc.py",
            0,
            "[WARN] [host] malformed input: Parse error: JSON is malformed: invalid character "
            "(byte 0): add 1 2\n"
            "[WARN] [host] this server expects JSON-RPC messages; to call a tool: concertino call "
            "NAME KEY=VALUE -- python -m concertino serve calc.py\n",
            '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: JSON is '
            'malformed: invalid character (byte 0)"}}\n',
            typed="add 1 2\n\x04",
        ),
    ),
    Case(
        "both one and two have the resource",
        "notes://today",
        "remove one, or give it another URI",
        Mistake(
            "a conflict of a composition in a test",
            {
                "test_calc.py": "import asyncio\nfrom concertino import Client, Server, compose\n"
                "one, two = Server('one'), Server('two')\nfor server in (one, two):\n"
                "    server.add_resource('notes://today', lambda: '', name='today')\n"
                "async def main():\n    async with Client(compose(one=one, two=two)):\n"
                "        pass\nasyncio.run(main())\n"
            },
            "python test_calc.py",
            1,
            f'{TRACEBACK}  File "FOLDER/test_calc.py", line 9, in <module>\n'
            "    asyncio.run(main())\n"
            '  File "FOLDER/test_calc.py", line 7, in main\n'
            "    async with Client(compose(one=one, two=two)):\n"
            "concertino.errors.RegistrationError: compose: both one and two have the resource "
            "notes://today; remove one, or give it another URI\n",
        ),
    ),
]

RUNNING = [
    Case(
        "tool 'block' has blocked the event loop for 250 ms",
        "stands at calc.py:6",
        "Make it a `def` without inline=True, or await what takes long",
        Mistake(
            "a blocking call in an async tool",
            calc("import time\n@server.tool\nasync def block() -> None:\n    time.sleep(0.6)\n"),
            f"concertino call block {SERVER}",
            0,
            "concertino call: the server warns: tool 'block' has blocked the event loop for 250 "
            "ms, and stands at calc.py:6; other calls and pings wait. Make it a `def` without "
            "inline=True, or await what takes long\n",
        ),
    ),
    Case(
        "this code runs on an event loop already",
        "calc.py:6",
        "write `await ...` in it",
        Mistake(
            "asyncio.run() in a tool",
            calc(
                "import asyncio\n@server.tool\nasync def nest() -> None:\n"
                "    asyncio.run(asyncio.sleep(0))\n"
            ),
            f"concertino call nest {SERVER}",
            1,
            "concertino call: the server's log has a traceback from calc.py:6; this code runs on "
            "an event loop already: write `await ...` in it, or put it into a `def`, which runs in "
            "a thread; -v shows it\n",
            "RuntimeError: asyncio.run() cannot be called from a running event loop\n",
        ),
    ),
    Case(
        "ZeroDivisionError: division by zero",
        "calc.py:5",
        # What to do is the author's to know.
        "",
        Mistake(
            "an exception in a tool",
            calc("@server.tool\ndef fail() -> float:\n    return 1 / 0\n"),
            f"concertino call fail {SERVER}",
            1,
            tool_traceback(5),
            "ZeroDivisionError: division by zero\n",
        ),
    ),
    Case(
        "returned a coroutine that was not awaited",
        "calc.py:4",
        "write `return await sleep(...)`",
        Mistake(
            "a coroutine that is not awaited",
            calc(
                "import asyncio\n@server.tool\nasync def fetch() -> str:\n"
                "    return asyncio.sleep(0)\n"
            ),
            f"concertino call fetch {SERVER}",
            1,
            "",
            "fetch() (calc.py:4) returned a coroutine that was not awaited: write `return await "
            "sleep(...)`\n",
        ),
    ),
    Case(
        "Context has no 'info'",
        "calc.py:6",
        "write context.log('info', ...)",
        Mistake(
            "a name that FastMCP's Context has",
            calc(
                "from concertino import Context\n@server.tool\n"
                "async def work(context: Context) -> None:\n    await context.info('begun')\n"
            ),
            f"concertino call work {SERVER}",
            1,
            tool_traceback(6),
            "AttributeError: Context has no 'info': write context.log('info', ...)\n",
        ),
    ),
    Case(
        "input() gets no answer in a server",
        "calc.py:5",
        "write `await context.elicit(...)`",
        Mistake(
            "input() in a tool",
            calc("@server.tool\ndef ask() -> str:\n    return input()\n"),
            f"concertino call ask {SERVER}",
            1,
            tool_traceback(5),
            "EOFError: stdin carries the protocol, so input() gets no answer in a server; to ask "
            "the user, write `await context.elicit(...)` in an `async def` tool, or make the "
            "answer a parameter of the tool\n",
        ),
    ),
    Case(
        "stdout is the protocol channel",
        "a print at calc.py:5",
        # Nothing has to be done.
        "",
        Mistake(
            "print() in a tool",
            calc("@server.tool\ndef say() -> str:\n    print('hi')\n    return 'said'\n"),
            f"concertino call -v say {SERVER}",
            0,
            "[WARN] [stdio] stdout is the protocol channel; a print at calc.py:5 went to stderr "
            "(only the first is reported)\nhi\n",
            "said\n",
        ),
    ),
]

CALLING = [
    Case(
        "there is no command",
        "calc.py",
        "write -- python calc.py",
        Mistake(
            "a Python file that is not run with python",
            CALCULATOR,
            "concertino tools -- calc.py",
            3,
            "concertino tools: there is no command calc.py\n  write -- python calc.py\n",
        ),
    ),
    Case(
        "it is no MCP server",
        "`cat`",
        "write the command of an MCP server after --",
        Mistake(
            "cat as a server",
            {},
            "concertino tools -- cat",
            5,
            "concertino tools: `cat` repeats what it is sent: it is no MCP server\n"
            "  write the command of an MCP server after --, such as -- python server.py\n",
        ),
    ),
    Case(
        "Connection refused",
        "http://127.0.0.1:1/mcp",
        "to start a server there: concertino serve server.py --http 127.0.0.1:1",
        Mistake(
            "a URL where nobody listens",
            {},
            "concertino tools -- http://127.0.0.1:1/mcp",
            3,
            "concertino tools: http://127.0.0.1:1/mcp: Connection refused\n"
            "  to start a server there: concertino serve server.py --http 127.0.0.1:1\n",
        ),
    ),
    Case(
        "there is no tool",
        "'ad'",
        "did you mean add?",
        Mistake(
            "a mistyped tool",
            CALCULATOR,
            f"concertino call ad a=1 b=2 {SERVER}",
            1,
            "concertino call: there is no tool 'ad' (-32602)\n"
            "  did you mean add?\n"
            "  `concertino tools -- python calc.py` lists what there is\n",
        ),
    ),
    Case(
        "Resource not found",
        "config://ap:",
        "did you mean config://app?",
        Mistake(
            "a mistyped resource",
            CALCULATOR,
            f"concertino read config://ap {SERVER}",
            1,
            "concertino read: config://ap: Resource not found (-32602)\n"
            "  did you mean config://app?\n"
            "  `concertino resources -- python calc.py` lists what there is\n",
        ),
    ),
    Case(
        "expected KEY=VALUE",
        "1:",
        "write the name of the argument before it, as in NAME=1",
        Mistake(
            "arguments without names",
            CALCULATOR,
            f"concertino call add 1 2 {SERVER}",
            2,
            "concertino call: 1: expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -\n"
            "  write the name of the argument before it, as in NAME=1; `concertino tools` lists "
            "the names\n",
        ),
    ),
    Case(
        "add needs",
        "b (integer)",
        "write: concertino call add a=1 b=INTEGER -- python calc.py",
        Mistake(
            "a missing argument",
            CALCULATOR,
            f"concertino call add a=1 {SERVER}",
            2,
            "concertino call: add needs b (integer)\n"
            "  write: concertino call add a=1 b=INTEGER -- python calc.py\n",
        ),
    ),
    Case(
        "divide has no argument",
        "'digist'",
        "did you mean digits?",
        Mistake(
            "an unknown argument",
            CALCULATOR,
            f"concertino call divide a=1 b=2 digist=1 {SERVER}",
            2,
            "concertino call: divide has no argument 'digist'\n"
            "  did you mean digits?\n"
            "  divide takes a (number), b (number), optional: digits (integer)\n",
        ),
    ),
    Case(
        "expected an integer",
        "b=two",
        # That it must be an integer is all there is to say.
        "",
        Mistake(
            "an argument of the wrong type",
            CALCULATOR,
            f"concertino call add a=1 b=two {SERVER}",
            2,
            "concertino call: b=two: expected an integer\n  add takes a (integer), b (integer)\n",
        ),
    ),
]

CASES = [*WRITING, *STARTING, *RUNNING, *CALLING]


# Where a process stands is read from /proc.
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=ON_LINUX if "it stands at" in case.where else ()) for case in CASES],
    ids=lambda case: f"{case.level}: {case.mistake.name}",
)
def test_what_is_said_about(case: Case, tmp_path: Path) -> None:
    mistake = case.mistake
    result = run_mistake(mistake, tmp_path)
    assert (result.err, result.out, result.code) == (mistake.err, mistake.out, mistake.code)
    for part in (case.what, case.where, case.to_do):
        assert part in result.err + result.out


def test_all_forty_reach_level_2_and_thirty_level_3() -> None:
    levels = [case.level for case in CASES]
    assert len(levels) == len({case.mistake.name for case in CASES}) == 40
    assert min(levels) == 2
    assert levels.count(3) >= 30
