"""Files of servers as the hosts' documentation shows them, for several tests."""

from __future__ import annotations

__all__ = ["HOST_FILES"]

# Name of the file -> its text.
HOST_FILES = {
    # Claude Desktop, Cursor, Windsurf
    "claude_desktop_config.json": """
{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/Desktop"]
    },
    "brave-search": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-brave-search"],
      "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}"},
      "disabled": true,
      "alwaysAllow": []
    }
  }
}
""",
    # Claude Code
    ".mcp.json": """
{
  "mcpServers": {
    "api": {
      "type": "http",
      "url": "${API_BASE_URL:-https://api.example.com}/mcp",
      "headers": {"Authorization": "Bearer ${API_KEY}"},
      "timeout": 600000
    },
    "db": {"type": "stdio", "command": "${HOME}/bin/db", "args": [], "env": {}}
  }
}
""",
    # VS Code
    ".vscode/mcp.json": """
{
  // 💡 Inputs are asked for on first server start, then stored securely by VS Code.
  "inputs": [
    {
      "type": "promptString", "id": "perplexity-key", "description": "Perplexity API Key",
      "password": true
    },
    {
      "type": "pickString", "id": "region", "description": "Region", "default": "eu",
      "options": ["eu", {"label": "US", "value": "us"}]
    },
  ],
  "servers": {
    "Perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "server-perplexity-ask", "--region=${input:region}"],
      "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}", "RETRIES": 3, "DEBUG": null},
      "envFile": "${workspaceFolder}/.env",
      "dev": {"watch": "src/**/*.ts", "debug": {"type": "node"}},
    },
    "Fetch": {"type": "stdio", "command": "uvx", "args": ["mcp-server-fetch"]},
  },
}
""",
    # Codex
    "config.toml": """
model = "gpt-5"

[mcp_servers.context7]
command = "npx"
args = ["-y", "@upstash/context7-mcp"]
env_vars = ["LOCAL_TOKEN", { name = "REMOTE_TOKEN", source = "remote" }]
startup_timeout_sec = 20
tool_timeout_sec = 45.5
enabled = true
enabled_tools = ["search", "open"]
disabled_tools = ["open"]

[mcp_servers.context7.env]
MY_ENV_VAR = "MY_ENV_VALUE"

[mcp_servers.figma]
url = "https://mcp.figma.com/mcp"
bearer_token_env_var = "FIGMA_OAUTH_TOKEN"
http_headers = { "X-Figma-Region" = "us-east-1" }
env_http_headers = { "X-Team" = "FIGMA_TEAM" }

[mcp_servers.figma.x-concertino]
pin = true
""",
    # Gemini CLI
    "settings.json": """
{
  "theme": "dark",
  "mcpServers": {
    "python": {
      "command": "python",
      "args": ["-m", "my_mcp_server", "--port", "8080"],
      "cwd": "./servers",
      "env": {"API_KEY": "$EXTERNAL_API_KEY"},
      "timeout": 15000,
      "trust": false,
      "includeTools": ["safe_*"],
      "excludeTools": ["safe_not"]
    },
    "remote": {"httpUrl": "http://localhost:3000/mcp"}
  }
}
""",
    # ours
    "mcp.json": """
{
  "mcpServers": {
    "github": {
      "command": "docker",
      "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN", "ghcr.io/github/github-mcp-server"],
      "env": {"GITHUB_TOKEN": "secret:github"},
      "x-concertino": {
        "allow": ["get_*", "prompt:*"],
        "deny": "get_secret*",
        "rename": {"get_me": "whoami"},
        "tools": {
          "get_issue": {
            "tags": "bugs",
            "arguments": {"owner": {"env": "OWNER"}, "repo": {"value": ["a", {"b": 1}]}}
          }
        },
        "prompts_as_tools": true,
        "guards": {
          "rate_limit": ["10/60", "get_*=5/1"], "timeout_s": 30, "max_in_flight": 4,
          "max_result_bytes": 50000, "redact": true
        },
        "isolation": "session",
        "idle_s": 600,
        "ping_s": 30,
        "shared": false,
        "pin": true,
        "inherit": ["HTTPS_PROXY"]
      }
    }
  }
}
""",
}
