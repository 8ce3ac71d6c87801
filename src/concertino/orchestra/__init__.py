"""Orchestra: hubs, plugins, and the bridge from MCP to a hub. Needs the extra `orchestra`."""
