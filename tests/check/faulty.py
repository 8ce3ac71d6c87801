"""A small MCP server that keeps every rule but one: `faulty.py FAULT`.

It uses the standard library only. Each fault is triggered by one action of a case, so that a test
can name the cases that must find it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

# Hundreds of these servers start: what few or type checkers alone need is imported there.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
MIB = 2**20
LIMIT = 10 * MIB
REVISIONS = ("2024-11-05", "2025-06-18", "2025-11-25")
STRING, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS: dict[str, dict[str, Any]] = {
    "echo turns text to ascii": {"echo": {"text": STRING}},
    "calls one after the other": {"sleep": {"seconds": NUMBER}},
    "answers what was cancelled": {"sleep": {"seconds": NUMBER}},
    "tells progress after the answer": {"tell_late": {}},
    "tells progress of what was cancelled": {"count": {"to": NUMBER}},
    "a failure is no error": {"fail": {"how": {"type": "string", "enum": ["badly"]}}},
    "logs secrets": {"leak": {"secret": STRING}},
}
WITHOUT_TOOLS = ("offers no tools", "knows unknown tools without offering any")
lock = threading.Lock()
kept: list[Any] = []
opened = False


def send(message: Any, end: bytes = b"\n") -> None:
    with lock:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + end
        while data:
            data = data[os.write(1, data) :]


def fail(id: Any, code: int, text: str) -> None:
    send({"id": id, "error": {"code": code, "message": text}})


def take(line: bytes) -> None:
    if not line.strip():
        return None
    if FAULT == "hangs on garbage" and line == b"{not json}":
        time.sleep(600)
    if FAULT == "dies of bytes that are no UTF-8" and b"\xff" in line:
        os._exit(7)
    if FAULT == "dies of a deep nesting" and line.startswith(b"[[[["):
        os.abort()
    if FAULT == "is slow after a deep nesting" and line.startswith(b"[[[["):
        time.sleep(1.6)
    if len(line) > LIMIT:
        return fail(None, -32600, f"longer than {LIMIT} bytes")
    try:
        message = json.loads(str(line, "utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError):
        if FAULT != "says nothing to garbage":
            fail(None, -32700, "Parse error")
        return None
    if not isinstance(message, dict):
        return fail(None, -32600, "Invalid Request")
    if "method" not in message and ("result" in message or "error" in message):
        if FAULT == "answers a response":
            fail(message.get("id"), -32600, "Invalid Request")
        return None
    id = message.get("id")
    has_id = type(id) is int or type(id) is str
    if (
        message.get("jsonrpc") != "2.0"
        or not isinstance(message.get("method"), str)
        or ("id" in message and not has_id)
    ):
        if FAULT == "takes null for an id" and message.get("method") == "ping":
            return send({"id": None, "result": {}})
        if FAULT == "keeps memory" and message == {}:
            kept.append(b"x" * (200 * MIB))
        if FAULT == "keeps descriptors" and message == {}:
            kept.extend(os.dup(0) for _ in range(20))
        if FAULT == "keeps a child" and message == {}:
            import subprocess

            kept.append(subprocess.Popen(["sleep", "60"]))
        return fail(id if has_id else None, -32600, "Invalid Request")
    if "id" not in message:
        if (
            FAULT == "answers a notification"
            and message["method"] == "notifications/nobody/knows/this"
        ):
            fail(None, -32601, "Method not found")
        if FAULT == "answers a cancellation" and message["method"] == "notifications/cancelled":
            fail(None, -32602, "Invalid params")
        return None
    if not isinstance(message.get("params", {}), dict):
        return fail(id, -32602, "Invalid params")
    return serve(id, message["method"], message.get("params", {}))


def serve(id: Any, method: str, params: dict[str, Any]) -> None:
    global opened
    if FAULT == 'takes 0 for "0"' and id == 0:
        id = "0"
    if FAULT == "answers -1 twice" and id == -1:
        send({"id": id, "result": {}})
    if FAULT == "leaves an empty id out" and id == "":
        return None
    if method == "initialize":
        version = params.get("protocolVersion")
        if opened or not isinstance(version, str):
            return fail(id, -32602, "Invalid params")
        opened = True
        if version not in REVISIONS and FAULT != "agrees to every revision":
            version = REVISIONS[-1]
        info = {"name": "faulty", "version": "1"}
        return send(
            {
                "id": id,
                "result": {
                    "protocolVersion": version,
                    "capabilities": {} if FAULT in WITHOUT_TOOLS else {"tools": {}},
                    "serverInfo": info,
                },
            }
        )
    if method == "ping" and FAULT == "keeps memory of each call":
        kept.append(b"x" * 20_000)
    if method == "ping" and FAULT == "keeps a descriptor of each call":
        # Fewer than the usual limit of 1024.
        kept.append(os.dup(0) if len(kept) % 10 == 0 else -1)
    if method == "ping":
        return send({"id": id, "result": {}})
    if FAULT == "offers no tools" and method.startswith("tools/"):
        return fail(id, -32601, "Method not found")
    if method == "tools/list" and opened:
        tools = TOOLS.get(FAULT, {})
        schemas = [
            {
                "name": name,
                "inputSchema": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                },
            }
            for name, properties in tools.items()
        ]
        return send({"id": id, "result": {"tools": schemas}})
    if method == "tools/call" and params.get("name") in TOOLS.get(FAULT, {}):
        return use(
            id,
            params["name"],
            params.get("arguments", {}),
            params.get("_meta", {}).get("progressToken"),
        )
    if method == "tools/call":
        return fail(id, -32602, "Unknown tool")
    if method == "nobody/knows/this":
        return unknown(id)
    return fail(id, -32601, "Method not found")


def unknown(id: Any) -> None:
    if FAULT == "prints":
        os.write(1, b"what is this?\n")
    if FAULT == "prints an object":
        os.write(1, b'{"level": "info"}\n')
    if FAULT == "prints bytes that are no UTF-8":
        os.write(1, b'"\xff"\n')
    if FAULT == "sends a code that is a string":
        return send({"id": id, "error": {"code": "-32601", "message": "Method not found"}})
    if FAULT == "leaks a traceback":
        return fail(id, -32601, 'Traceback (most recent call last):\n  File "server.py", line 1')
    if FAULT == "never answers an unknown method":
        return None
    if FAULT == "knows every method":
        return send({"id": id, "result": {}})
    if FAULT == "ends after an unknown method":
        fail(id, -32601, "Method not found")
        os._exit(0)
    if FAULT == "closes stdout":
        fail(id, -32601, "Method not found")
        os.close(1)
        time.sleep(600)
    if FAULT == "answers somebody else":
        fail(id, -32601, "Method not found")
        id = 31337
    return fail(id, -32601, "Method not found")


def use(id: Any, tool: str, arguments: dict[str, Any], token: Any) -> None:
    def answer(text: str, *, wrong: bool = False) -> None:
        send({"id": id, "result": {"content": [{"type": "text", "text": text}], "isError": wrong}})

    if tool == "echo":
        answer(arguments["text"].encode("ascii", "replace").decode())
    elif tool == "sleep" and FAULT == "calls one after the other":
        time.sleep(arguments["seconds"])
        answer("slept")
    elif tool == "sleep":
        threading.Timer(arguments["seconds"], answer, ("slept",)).start()
    elif tool == "tell_late":
        answer("told")
        send(
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
        )
    elif tool == "count":

        def tell() -> None:
            for number in range(1, 300):
                send(
                    {
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": number},
                    }
                )
                time.sleep(0.01)

        threading.Thread(target=tell, daemon=True).start()
    elif tool == "leak":
        os.write(2, f"cannot log in with {arguments['secret']}\n".encode())
        answer("failed", wrong=True)
    else:
        answer("all is well")


def refuse(constant: str) -> None:
    raise ValueError(constant)


def main() -> None:
    buffer = bytearray()
    skipping = False
    while chunk := os.read(0, 1 << 20):
        if FAULT == "takes each read for a message":
            for line in chunk.splitlines():
                take(line)
            continue
        buffer += chunk
        if b"\n" not in chunk and len(buffer) > LIMIT + 1:
            if not skipping:
                fail(None, -32600, f"longer than {LIMIT} bytes")
            skipping = True
            buffer.clear()
            continue
        if b"\n" not in chunk:
            continue
        *lines, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        if skipping:
            del lines[0]
            skipping = False
        if FAULT == "ends lines at U+2028":
            lines = [
                part.encode()
                for line in lines
                for part in line.decode("utf-8", "replace").split("\u2028")
            ]
        if FAULT == "loses what comes in bulk":
            lines = lines[:500]
        for line in lines:
            take(
                line.removeprefix(b"\xef\xbb\xbf")
                if FAULT != "does not know CR"
                else line.replace(b"\r", b"?")
            )
    if FAULT == "ignores the end of input":
        time.sleep(600)
    if FAULT == "leaves a child behind":
        import subprocess

        subprocess.Popen(
            ["sleep", "60"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    if FAULT == "prints at its end":
        os.write(1, b"good bye\n")
    if FAULT == "crashes at its end":
        os.abort()
    if FAULT == "ends with 3":
        os._exit(3)


if __name__ == "__main__":
    main()
