"""A server that accepts every request with an id and does everything else badly."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

# As in faulty.py: many of these servers start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORD, NUMBER = {"type": "string"}, {"type": "number"}
HOW = {"type": "string", "enum": ["one", "two"]}
TOOLS: dict[str, dict[str, Any]] = {
    "echo": {"text": WORD},
    "sleep": {"seconds": NUMBER},
    "block": {"seconds": NUMBER},
    "fail": {"how": HOW},
    "give": {"what": HOW},
    "big": {"characters": NUMBER},
    "say": {"how": HOW, "text": WORD},
    "fork": {"how": HOW},
    "disturb": {},
    "count": {"to": NUMBER},
    "tell_late": {},
    "noise": {"bytes": NUMBER},
    "leak": {"secret": WORD},
}


def send(message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    match message.get("method"):
        case "initialize":
            version = params.get("protocolVersion", "2025-11-25")
            return {
                "protocolVersion": version,
                "capabilities": {},
                "serverInfo": {"name": "yes", "version": "0"},
            }
        case "server/discover":
            return {"supportedVersions": ["2026-07-28"], "capabilities": {}}
        case "tools/list":
            shape = {"type": "object"}
            return {
                "tools": [
                    {"name": name, "inputSchema": {**shape, "properties": TOOLS[name]}}
                    for name in TOOLS
                ]
            }
        case "tools/call":
            arguments = params.get("arguments")
            return {
                "content": [
                    {
                        "type": "text",
                        "text": use(params, arguments if isinstance(arguments, dict) else {}),
                    }
                ]
            }
    return {}


def use(params: dict[str, Any], arguments: dict[str, Any]) -> str:
    token = params.get("_meta", {}).get("progressToken")
    match params.get("name"):
        case "echo":
            return (
                str(arguments.get("text", ""))
                .replace("\n", " ")
                .replace("ü", "u")
                .replace("\u2028", " ")[:60_000]
            )
        case "sleep":
            time.sleep(min(2, arguments["seconds"]))
        case "block":
            # A case makes 64 short calls; they need not be slow to be one after the other.
            time.sleep(2 if arguments["seconds"] > 1 else 0.01)
        case "say" | "fork":
            print("here I am")
        case "big":
            return "x" * 1_000_000
        case "count" | "tell_late":
            for _ in range(2):
                send(
                    {
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": 1},
                    }
                )
        case "leak" | "fail":
            print("failed", arguments, "!" * 3000, file=sys.stderr)
    return "yes"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    signal.signal(signal.SIGINT, lambda *_: os._exit(6))
    for line in sys.stdin.buffer:
        try:
            message = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict) and isinstance(message.get("id"), int | str):
            send({"id": message["id"], "result": result(message)})
    os._exit(3)


if __name__ == "__main__":
    main()
