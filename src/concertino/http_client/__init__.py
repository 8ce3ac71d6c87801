"""The client side of MCP over HTTP ("Streamable HTTP"). It needs the extra `http`.

A Client has one StreamableHttpConnection (connection.py) for a server at a URL, or a
WebSocketClientConnection (websocket.py) for a ws: URL. StreamableHttpConnection makes a
ClientExchange (exchange.py), which is one HTTP request and its response, for each message that it
sends. The RequestSender (request_sender.py) sends the request on a PooledConnection of the
ConnectionPool (pool.py), with an access token from the Credentials, which the package authorization
implements. SingleRequests (single_requests.py) sends requests to authorization servers, at URLs
that an AddressPolicy (addresses.py) has checked.
"""
