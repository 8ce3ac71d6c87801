"""Orchestra: a plugin protocol beside MCP. It requires the extra `orchestra`.

A plugin is a program with tools, prompts or storage. A hub starts plugins and forwards requests
between them. A bridge is an MCP server that forwards the calls of its client to a hub. The messages
are Protobuf, over a Unix socket or QUIC.

Orchestra's first implementation is written in Go. "The Go implementation" and "Go programs" mean
it in this package; hubs and plugins of both implementations work together.
"""
