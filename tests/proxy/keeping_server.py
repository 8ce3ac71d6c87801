"""An MCP server without any library that keeps what it is told, and shows it in every way of MCP.

Its tools: `keep`, `pid`, `ask`, `wait` and `die`.
"""

import json
import os
import sys
from typing import Any

kept: list[str] = []


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def notify(method: str, **params: Any) -> None:
    say(method="notifications/" + method, params=params)


capabilities = {
    "logging": {},
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "tasks": {"list": {}, "cancel": {}},
    "events": {},
}
asking: Any = None
streams: list[Any] = []
for line in sys.stdin:
    message = json.loads(line)
    method, params, id = message.get("method"), message.get("params", {}), message.get("id")
    if id == "question":
        say(id=asking, result={"content": [{"type": "text", "text": json.dumps(message)}]})
        continue
    result = {}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "serverInfo": {"name": "keeper", "version": "1"},
        }
    elif method == "tools/list":
        schema = {"type": "object"}
        result = {"tools": [{"name": name, "inputSchema": schema} for name in ["pid", *kept]]}
    elif method == "prompts/list":
        result = {"prompts": [{"name": name} for name in kept]}
    elif method == "resources/list":
        result = {"resources": [{"uri": "kept:" + name, "name": name} for name in kept]}
    elif method == "resources/templates/list":
        result = {"resourceTemplates": []}
    elif method == "resources/read":
        result = {"contents": [{"uri": params["uri"], "text": json.dumps(kept)}]}
    elif method == "tasks/list":
        result = {"tasks": [{"taskId": f"task-{text}", "status": "working"} for text in kept]}
    elif method in ("tasks/get", "tasks/cancel", "tasks/result"):
        if params["taskId"].removeprefix("task-") not in kept:
            say(id=id, error={"code": -32602, "message": "no such task"})
            continue
        result = {"taskId": params["taskId"], "status": "cancelled", "text": kept}
    elif method == "events/list":
        result = {"events": [{"name": name} for name in kept]}
    elif method == "events/stream":
        streams.append(id)
        continue
    elif method == "tools/call":
        arguments = params.get("arguments", {})
        what, text = params["name"], arguments.get("text", "")
        if what == "keep":
            kept.append(text)
            for kind in ("tools", "prompts", "resources"):
                notify(kind + "/list_changed")
            notify("resources/updated", uri="kept:all")
            notify("message", level="error", data=text)
            if (token := params.get("_meta", {}).get("progressToken")) is not None:
                notify("progress", progressToken=token, progress=1, message=text)
            for stream in streams:
                meta = {"io.modelcontextprotocol/subscriptionId": stream}
                notify("events/event", cursor=text, _meta=meta)
            notify("events/event", cursor="of nobody", data=text)
        elif what == "ask":
            asking = id
            schema = {"type": "object", "properties": {"name": {"type": "string"}}}
            say(
                id="question",
                method="elicitation/create",
                params={"message": text, "requestedSchema": schema},
            )
            continue
        elif what == "wait":
            notify("message", level="error", data=text)
            continue
        elif what == "die":
            print(text, file=sys.stderr, flush=True)
            print("Oops;", text, flush=True)
            os._exit(3)
        result = {"content": [{"type": "text", "text": json.dumps([os.getpid(), kept])}]}
    elif id is None:
        continue
    say(id=id, result=result)
