"""A server in a process of its own that does one thing wrong. The first argument is Python, run
when a call comes or as it says.

    python misbehaving.py legacy|modern CODE [BEFORE]

CODE is run with `id` and `arguments` of each tools/call, and `answer`, `say`, `os`, `sys`,
`signal`, `time`. BEFORE is run first of all.
"""

import json
import os
import signal
import sys
import time


def say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(id: object, result: object) -> None:
    say({"jsonrpc": "2.0", "id": id, "result": result})


era, code, *before = sys.argv[1:]
scope = {"say": say, "answer": answer, "os": os, "sys": sys, "signal": signal, "time": time}
for each in before:
    exec(each, scope)
compiled = compile(code, "CODE", "exec")
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "server/discover" and era == "modern":
        answer(
            message["id"],
            {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
            },
        )
    elif method == "initialize":
        info = {"name": "misbehaving", "version": "1"}
        answer(
            message["id"],
            {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
        )
    elif method == "tools/call":
        exec(
            compiled,
            {**scope, "id": message["id"], "arguments": message["params"].get("arguments")},
        )
    elif "id" in message:
        say(
            {
                "jsonrpc": "2.0",
                "id": message["id"],
                "error": {"code": -32601, "message": "method not found"},
            }
        )
