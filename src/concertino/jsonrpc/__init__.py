"""JSON-RPC 2.0: framing, messages and one end of a connection. No I/O, no clock, no threads.

framing.py splits a byte stream into frames (a frame is the JSON text of one message or batch), and
messages.py decodes and encodes them. peer.py tracks the requests in both directions, with the
tables of incoming_requests.py and outgoing_requests.py. The MCP layers above, protocol/session.py
for servers and client/channel.py for clients, own one Peer for each connection.
"""
