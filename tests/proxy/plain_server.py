"""An MCP server without any library, for tests: `python plain_server.py NAME [TOOL...]`.

It notes its name and process id in the file STARTS. Its tools, `who` and those named, tell about
the process: arguments, variables, working directory.
"""

import json
import os
import sys

with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{sys.argv[1]} {os.getpid()}\n")

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    method = message["method"]
    if method == "initialize":
        reply["result"] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": sys.argv[1], "version": "1"},
        }
    elif method == "tools/list":
        tools = ["who", *sys.argv[2:]]
        reply["result"] = {
            "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
        }
    elif method == "tools/call":
        facts = {
            "pid": os.getpid(),
            "argv": sys.argv[1:],
            "env": {name: value for name, value in os.environ.items() if name.startswith("MY_")},
            "cwd": os.getcwd(),
        }
        reply["result"] = {"content": [{"type": "text", "text": json.dumps(facts)}]}
    elif method == "ping":
        reply["result"] = {}
    else:
        reply["error"] = {"code": -32601, "message": f"method not found: {method}"}
    print(json.dumps(reply), flush=True)
