"""JSON-RPC 2.0: framing, messages and one end of a conversation. No I/O, no clock, no threads.

framing.py splits a byte stream into frames, messages.py decodes and encodes them, and peer.py
tracks the requests in both directions; requests.py has the objects for them. The MCP layers above,
protocol/session.py for servers and client/channel.py for clients, own one Peer for each connection.
"""
