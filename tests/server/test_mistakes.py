"""Mistakes in the file of a server, and what is said: what is wrong, where, what to do.

Those that beginners make most often are in tests/test_forty_mistakes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mistakes import ADD, END, HEAD, IMPORTING, TRACEBACK, Mistake, run_mistake

EXPECTED = "expected file.py, file.py:attribute, package.module:attribute or a folder"

IN_MAIN = """from concertino import Server
def main() -> None:
    server = Server("calculator")
    @server.tool
    def add(a: int, b: int) -> int:
        return a + b
    server.run()
"""

TARGETS = [
    Mistake(
        "two servers in one file, and run() of the empty one",
        {"calc.py": HEAD + "math = Server('math')\n" + ADD.replace("server", "math") + END},
        "python calc.py",
        0,
        "[WARN] [calculator] calc.py: the server 'calculator' is served, and has no tools, prompts "
        "or resources; the server 'math' has: call math.run() instead, or serve both with "
        "compose()\n",
    ),
    Mistake(
        "a server inside of a main() that nothing calls, as a script",
        {"calc.py": IN_MAIN},
        "python calc.py",
        0,
        "calc.py has ended without serving: nothing calls main(), which makes a server in line 3. "
        'Add at its end:\n\nif __name__ == "__main__":\n    main()\n',
    ),
    Mistake(
        "a server inside of an async main() that nothing calls, to its client",
        {"calc.py": f"import asyncio\n{IN_MAIN.replace('def main', 'async def main')}"},
        "concertino tools -- python calc.py",
        3,
        "concertino tools: the server cannot start: calc.py has ended without serving: nothing "
        "calls main(), which makes a server in line 4\n",
    ),
    Mistake(
        "a main() that calls no run()",
        {"calc.py": f"{IN_MAIN.replace('    server.run()', '')}main()\n"},
        "python calc.py",
        0,
        "calc.py has made a server in main(), line 3, and ended without serving it: nothing calls "
        "run(). Call its run() at the end of the function\n",
    ),
    Mistake(
        "no mistake: a script that makes a server on a condition",
        {"calc.py": f"{IN_MAIN}import sys\nif sys.argv[1:]:\n    main()\n"},
        "python calc.py",
        0,
        "",
    ),
    Mistake(
        "a file without a server",
        {"calc.py": "x = 1\n"},
        "concertino serve calc.py",
        2,
        "[ERROR] [concertino] calc.py: no concertino.Server found at its top level; make one "
        'there, as in `server = Server("name")`\n',
    ),
    Mistake(
        "relative imports in a file of the current folder",
        {"pkg/__init__.py": "", "alone.py": "from . import names\n"},
        "concertino serve alone.py",
        1,
        f"{IMPORTING} alone.py: ImportError: attempted relative import with no known parent "
        "package (alone.py:1); a file without a package around it has no siblings: write "
        "`import ...`\n[INFO] [concertino] --traceback shows where\n",
    ),
    Mistake(
        "a colon without a name",
        {"calculator.py": HEAD},
        "concertino serve calculator.py:",
        2,
        "[ERROR] [concertino] calculator.py:: expected the name of a server after the colon, or "
        "calculator.py\n",
    ),
    Mistake(
        "a path from another folder",
        {},
        "concertino serve calculator.py",
        2,
        "[ERROR] [concertino] calculator.py: no such file in FOLDER\n",
    ),
    Mistake(
        "a path through a folder that does not exist",
        {},
        "concertino serve source/calculator.py",
        2,
        "[ERROR] [concertino] source/calculator.py: no such file; there is no folder source\n",
    ),
    Mistake(
        "a dependency that is not installed, as a script",
        {"calc.py": HEAD + "import no_such_package\n"},
        "python calc.py",
        1,
        f'{TRACEBACK}  File "FOLDER/calc.py", line 3, in <module>\n    import no_such_package\n'
        "ModuleNotFoundError: No module named 'no_such_package'\n"
        "install the package that has it: INSTALL PACKAGE\n",
    ),
    Mistake(
        "a composition that cannot start, to its client",
        {
            "calc.py": "from concertino import Server, compose, run\n"
            "one, two = Server('one'), Server('two')\nfor server in (one, two):\n"
            "    server.add_resource('notes://today', lambda: '', name='today')\n"
            "run(compose('both', one=one, two=two))\n"
        },
        "concertino tools -- python calc.py",
        3,
        "concertino tools: the server cannot start: RegistrationError: compose: both one and two "
        "have the resource notes://today; remove one, or give it another URI\n",
    ),
    Mistake(
        "no mistake: a script that serves on a condition",
        {"calc.py": HEAD + ADD + "import sys\nif sys.argv[1:]:\n    server.run()\n"},
        "python calc.py",
        0,
        "",
    ),
    Mistake(
        "no mistake: a script that calls its server in memory",
        {
            "calc.py": f"import asyncio, concertino\n{HEAD}async def main():\n"
            "    async with concertino.Client(server): pass\nasyncio.run(main())\n"
        },
        "python calc.py",
        0,
        "",
    ),
    Mistake(
        "an error in a script, which is reported alone",
        {"calc.py": HEAD + ADD + "raise SystemExit(server.nam)\n"},
        "python calc.py",
        1,
        f'{TRACEBACK}  File "FOLDER/calc.py", line 6, in <module>\n'
        "    raise SystemExit(server.nam)\n"
        "AttributeError: 'Server' object has no attribute 'nam'. Did you mean: 'name'?\n",
    ),
    Mistake(
        "a mistyped decorator",
        {"calc.py": HEAD + ADD.replace("tool", "tools")},
        "python calc.py",
        1,
        f'{TRACEBACK}  File "FOLDER/calc.py", line 3, in <module>\n    @server.tools\n'
        "AttributeError: 'Server' object has no attribute 'tools'. Did you mean: 'tool'?\n",
    ),
]


def registered_wrongly(
    name: str, line: int, statement: str, source: str, error: str
) -> list[Mistake]:
    """Return the rows of a mistake that raises `error`, for `serve` and for a script."""
    kind, _, text = error.partition(": ")
    served, _, _ = kind.rpartition(".")
    return [
        Mistake(
            name,
            {"calc.py": HEAD + source},
            "concertino serve calc.py",
            1,
            f"{IMPORTING} calc.py: {kind.removeprefix(served).removeprefix('.')}: {text} "
            f"(calc.py:{line})\n[INFO] [concertino] --traceback shows where\n",
        ),
        Mistake(
            f"{name}, as a script",
            {"calc.py": HEAD + source},
            "python calc.py",
            1,
            f'{TRACEBACK}  File "FOLDER/calc.py", line {line}, in <module>\n    {statement}\n'
            f"{error}\n",
        ),
    ]


def tool(options: str) -> str:
    return ADD.replace("tool", f"tool({options})")


REGISTRATIONS = [
    *registered_wrongly(
        "a mistyped option",
        3,
        "@server.tool(nmae='plus')",
        tool("nmae='plus'"),
        "TypeError: add: got an unexpected keyword argument 'nmae'; did you mean 'name'?",
    ),
    *registered_wrongly(
        "a mistyped option of a guard",
        3,
        "@server.tool(timeout=3)",
        tool("timeout=3"),
        "TypeError: add: got an unexpected keyword argument 'timeout'; did you mean 'timeout_s'?",
    ),
    *registered_wrongly(
        "a mistyped option of the server",
        3,
        "server = Server('c', verison='1')",
        "server = Server('c', verison='1')\n",
        "TypeError: Server: got an unexpected keyword argument 'verison'; did you mean 'version'?",
    ),
    *registered_wrongly(
        "a tool that is removed under a mistyped name",
        6,
        "server.remove_tool('ad')",
        ADD + "server.remove_tool('ad')\n",
        "concertino.errors.NotRegistered: no tool is registered as 'ad'; did you mean 'add'?",
    ),
    *registered_wrongly(
        "two tools with one name",
        6,
        "@server.tool(name='add')",
        ADD + "@server.tool(name='add')\ndef plus(a: int) -> int:\n    return a\n",
        "concertino.errors.RegistrationError: a tool named 'add' is already registered "
        "(calc.py:3); pass name=... or call remove_tool('add') first",
    ),
    *registered_wrongly(
        "a name that no client accepts",
        3,
        "@server.tool(name='add numbers')",
        tool("name='add numbers'"),
        "concertino.errors.RegistrationError: tool name: expected 1 to 128 of A-Z a-z 0-9 _ . - , "
        "got 'add numbers'; pass name=...",
    ),
]

RUNS = [
    *(
        Mistake(
            f"run() with {name}",
            {"calc.py": f"{HEAD}server.run(http={value})\n"},
            "python calc.py",
            1,
            f'{TRACEBACK}  File "FOLDER/calc.py", line 3, in <module>\n'
            f"    server.run(http={value})\n{error}\n",
        )
        for name, value, error in (
            (
                "a port as a number",
                "8000",
                "TypeError: run: http: expected '127.0.0.1:8000', another HOST:PORT or unix:PATH, "
                "got 8000",
            ),
            (
                "an address that others can reach",
                "'0.0.0.0:8000'",
                "ValueError: tcp:0.0.0.0:8000 can be reached from other machines; add "
                "authorization (--auth-tokens, --auth-issuer, ...; or --no-auth if everybody may "
                "call every tool); TLS (--tls-cert and --tls-key; or --behind-proxy if a proxy in "
                "front has it); --public-url, the URL by which clients know the server\n"
                "in code: http_options=HttpOptions(authorization=..., tls=..., public_url=...), "
                "from concertino.http",
            ),
        )
    ),
]

BAD_TOOLS = f"""import asyncio, time
{HEAD}
@server.tool
async def block() -> None:
    time.sleep(0.6)
@server.tool
async def nest() -> None:
    asyncio.run(asyncio.sleep(0))
@server.tool
async def fail() -> float:
    return 1 / 0
@server.tool
def fail_in_a_thread() -> float:
    return 1 / 0
@server.tool
async def forget() -> str:
    return asyncio.sleep(0)
@server.tool
async def use_too_early() -> str:
    return asyncio.sleep(0).text
@server.tool
async def count() -> int:
    return "three"
{END}"""
CALL = "-- python calc.py"
CALLS = [
    Mistake(
        "a blocking call in an async tool",
        {"calc.py": BAD_TOOLS},
        f"concertino call --stderr block {CALL}",
        0,
        "[WARN] [host] tool 'block' has blocked the event loop for 250 ms, and stands at "
        "calc.py:7; other calls and pings wait. Make it a `def` without inline=True, or await "
        "what takes long\n",
    ),
    Mistake(
        "asyncio.run in a tool",
        {"calc.py": BAD_TOOLS},
        f"concertino call --stderr nest {CALL}",
        1,
        f"[ERROR] [calculator] tool nest failed\n    {TRACEBACK}"
        '      File "FOLDER/calc.py", line 10, in nest\n        asyncio.run(asyncio.sleep(0))\n'
        "    RuntimeError: asyncio.run() cannot be called from a running event loop\n"
        "    this code runs on an event loop already: write `await ...` in it, or put it into a "
        "`def`, which runs in a thread\n",
    ),
    Mistake(
        "a coroutine that is used without await",
        {"calc.py": BAD_TOOLS},
        f"concertino call use_too_early {CALL}",
        1,
        "concertino call: the server's log has a traceback from calc.py:22; an `async def` gives "
        "its result to `await` only: write `(await ...)` around the call; -v shows it\n",
    ),
    Mistake(
        "a result of another type than its annotation",
        {"calc.py": BAD_TOOLS},
        f"concertino call --stderr count {CALL}",
        1,
        "[ERROR] [calculator] tool count failed: the result does not conform to its annotation: "
        "expected int, got str (calc.py:23)\n",
    ),
    *(
        Mistake(
            f"an exception in a tool: {name}",
            {"calc.py": BAD_TOOLS},
            f"concertino call --stderr {name} {CALL}",
            1,
            f"[ERROR] [calculator] tool {name} failed\n    {TRACEBACK}"
            f'      File "FOLDER/calc.py", line {line}, in {name}\n        return 1 / 0\n'
            "    ZeroDivisionError: division by zero\n",
        )
        for name, line in (("fail", 13), ("fail_in_a_thread", 16))
    ),
]


@pytest.mark.parametrize(
    "mistake", [*TARGETS, *REGISTRATIONS, *RUNS, *CALLS], ids=lambda mistake: mistake.name
)
def test_what_is_said_about(mistake: Mistake, tmp_path: Path) -> None:
    result = run_mistake(mistake, tmp_path)
    assert (result.err, result.code) == (mistake.err, mistake.code)
