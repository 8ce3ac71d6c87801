"""The client side of MCP over HTTP ("Streamable HTTP"). It requires the extra http.

A Client has one StreamableHttpConnection (connection.py) for a server at a URL, or for a ws: URL a
WebSocketClientConnection (websocket.py). StreamableHttpConnection makes a ClientExchange
(exchange.py) of each message. Its RequestSender (request_sender.py) sends it on a PooledConnection
of the ConnectionPool (pool.py), with a token from its Credentials, which come from the package
authorization. SingleRequests (single_requests.py) is for requests to other servers, to URLs that an
AddressPolicy (addresses.py) has checked.
"""
