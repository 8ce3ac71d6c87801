"""The client side of MCP over HTTP ("Streamable HTTP"). It requires the extra http.

A Client has one StreamableHttpConnection (connection.py) for a server at a URL, or for a ws: URL a
WebSocketClientConnection (websocket.py). StreamableHttpConnection makes a ClientExchange
(exchange.py) of each message, and sends it on a PooledConnection of its ConnectionPool (pool.py).
Its Credentials (credentials.py) come from the package authorization. SingleRequests
(single_requests.py) is for requests to other servers, to URLs that an AddressPolicy (addresses.py)
has checked.
"""
