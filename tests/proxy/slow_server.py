"""An MCP server without any library that starts when it is allowed to, as one that npx installs.

`python slow_server.py FOLDER`: it writes to stderr what it installs, and waits until the file
FOLDER/go exists. FOLDER/offer has what it offers, as JSON: version, tools, instructions, private.
Each start adds a line to FOLDER/starts, each list a line to FOLDER/lists.
"""

import json
import os
import sys
import time

folder = sys.argv[1]


def note(name, text):
    with open(os.path.join(folder, name), "a") as file:
        file.write(f"{text}\n")


note("starts", os.getpid())
print("npm warn old lockfile", "added 12 packages", sep="\n", file=sys.stderr, flush=True)
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.01)
with open(os.path.join(folder, "offer")) as file:
    offer = json.load(file)
private = offer.get("private")
modern = private is not None
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method", ""), message.get("params", {})
    error, result = None, {}
    if method == ("server/discover" if modern else "initialize"):
        result = {
            "capabilities": {"tools": {}},
            "instructions": offer.get("instructions", "Be brief."),
        }
        info = {"name": "slow", "version": offer["version"]}
        if modern:
            result |= {"supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"}
            result["_meta"] = {"io.modelcontextprotocol/serverInfo": info}
        else:
            result |= {"protocolVersion": "2025-06-18", "serverInfo": info}
    elif method == "tools/list":
        note("lists", params.get("cursor", ""))
        names, start = offer["tools"], int(params.get("cursor", 0))
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        result = {"tools": tools[start : start + 2]}
        if modern:
            result |= {"ttlMs": 60000, "cacheScope": "private" if private else "public"}
        if start + 2 < len(tools):
            result["nextCursor"] = str(start + 2)
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": offer["version"]}]}
    elif "id" in message and method != "ping":
        error = {"code": -32601, "message": "method not found"}
    if "id" not in message:
        continue
    if modern:
        result["resultType"] = "complete"
    outcome = {"result": result} if error is None else {"error": error}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)
