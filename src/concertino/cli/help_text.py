"""The overview of all commands that `concertino --help` shows, and the examples of each command.

The parsers (parsers.py) use it when they print help.
"""

from __future__ import annotations

from concertino.cli import COMMANDS

__all__ = ["describe_commands", "examples"]

# Heading -> the commands below it. Each command is below one heading.
GROUPS = {
    "Begin": ("demo", "new", "docs", "completion"),
    "Serve your own": ("serve", "dev", "config", "token", "search", "lint"),
    "Use any server": (
        "tools",
        "call",
        "resources",
        "read",
        "prompts",
        "prompt",
        "shell",
        "check",
        "login",
        "logout",
        "whoami",
    ),
    "Stand in front of servers": ("proxy", "approve", "ps", "reap", "connect"),
    "Plugins of an Orchestra hub": (
        "orchestrate",
        "hub",
        "bridge",
        "plugin",
        "cluster",
        "certs",
    ),
}
FIRST_STEPS = (
    "concertino new my_server",
    "concertino call add a=1 b=2 -- python calculator.py",
)
# A server in another language, for examples.
OTHER = "npx -y @modelcontextprotocol/server-everything"
LAST_LINES = """\
`concertino COMMAND --help` shows the options of a command, with examples.

options:
  -h, --help   show this text
  --version    show the versions of package, Python and protocol, and the extras

Environment variables (`concertino docs environment`): LOG_LEVEL, CACHE_SIZE,
CONCERTINO_LOG_FORMAT, CONCERTINO_TRACE, CONCERTINO_ORPHAN, RESOURCES_PATH,
PROMPTS_PATH, and one for each limit, such as CONCERTINO_MAX_MESSAGE_BYTES.
"""
# Command -> example command lines.
EXAMPLES = {
    "cluster": (
        "concertino cluster up tools.notes",
        "concertino cluster permissions plugins.yaml > permissions.conf",
        "concertino cluster buckets storage.nats --cluster tls://a,b,c --replicas 3",
    ),
    "new": ("concertino new my_server", "concertino new my_plugin --claude-plugin"),
    "serve": (
        "concertino serve calculator.py",
        "concertino serve calculator.py --http 127.0.0.1:8000",
        "concertino serve math=calculator.py notes.py",
        "concertino serve docs",
        "concertino serve mcp.json --deny 'delete_*' --timeout 30",
    ),
    "dev": ("concertino dev server.py", "concertino dev server.py --inspector"),
    "config": (
        "concertino config server.py",
        "concertino config server.py --client cursor --env TOKEN=...",
        f"concertino config -- {OTHER}",
    ),
    "proxy": (
        f"concertino proxy -- {OTHER}",
        "concertino proxy --timeout 30 --redact -- python server.py",
        "concertino proxy -- https://example.com/mcp",
    ),
    "approve": ("concertino approve mcp.json", "concertino approve mcp.json --show"),
    "connect": ("concertino connect unix:calculator.sock",),
    "check": (
        "concertino check --quick -- python server.py",
        f"concertino check --only 3 -- {OTHER}",
    ),
    "tools": (
        "concertino tools -- python calculator.py",
        f"concertino tools -- {OTHER}",
        "concertino tools -- http://127.0.0.1:8000/mcp",
    ),
    "call": (
        "concertino call add a=1 b=2 -- python calculator.py",
        """concertino call add '{"a": 1, "b": 2}' -- http://127.0.0.1:8000/mcp""",
        "concertino call save text=@notes.md tags:='[1, 2]' -- python server.py",
    ),
    "resources": ("concertino resources -- python notes.py",),
    "read": ("concertino read notes://today -- python notes.py",),
    "prompts": ("concertino prompts -- python notes.py",),
    "prompt": ("concertino prompt summarize file=notes.md -- python notes.py",),
    "shell": ("concertino shell -- python calculator.py",),
    "search": ("concertino search docs error handling", "concertino search docs retry --mode full"),
    "lint": ("concertino lint docs",),
    "login": ("concertino login https://example.com/mcp",),
    "logout": ("concertino logout https://example.com/mcp",),
    "whoami": ("concertino whoami",),
    "hub": ("concertino hub ps", "concertino hub restart tools.greeter"),
    "docs": ("concertino docs", "concertino docs first-server"),
    "completion": (
        'eval "$(concertino completion bash)"    # a line of ~/.bashrc',
        'eval "$(concertino completion zsh)"     # in ~/.zshrc, below compinit',
        "concertino completion fish > ~/.config/fish/completions/concertino.fish",
    ),
}


def examples(command: str) -> str:
    """Return the end of a command's help, which has its examples; "" if the command has none.

    command: the name of the command, such as "serve".
    """
    if command not in EXAMPLES:
        return ""
    return "\nexamples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[command])


def describe_commands() -> str:
    """Return the text of `concertino --help`: all commands, grouped by purpose."""
    width = max(map(len, COMMANDS))
    lines = ["usage: concertino [-h] [--version] COMMAND ...", ""]
    lines += ["Write MCP servers, use any server, and stand in front of any."]
    for heading, names in GROUPS.items():
        lines += ["", f"{heading}:"]
        lines += [f"    {name:{width}}  {COMMANDS[name][1]}" for name in names]
    lines += ["", "First steps:", *(f"    {line}" for line in FIRST_STEPS), "", LAST_LINES]
    return "\n".join(lines)
