"""Hints for the user if no MCP server answers at an address: a URL, unix:PATH or tcp:HOST:PORT.

Commands such as `concertino call` add them to their error messages. Most hints depend on words in
the text of the error, which the transports of the client have chosen.
"""

from __future__ import annotations

import re
import shlex
import socket
from urllib.parse import SplitResult, urlsplit

from concertino.client.targets import is_tls_error, is_url
from concertino.errors import Disconnected
from concertino.transports.addresses import is_loopback

__all__ = ["suggest_http", "suggest_listening", "suggest_path"]

# Matches the error of a server whose URL has the wrong path.
WRONG_PATH = re.compile(r"nothing is served here|\bHTTP (404|405|501)\b|with text/html")


def suggest_listening(address: str, error: Disconnected) -> str:
    """Return a hint that says what to do about an address where no server answers.

    address: a URL, unix:PATH or tcp:HOST:PORT.
    error: the failure; its text and its cause decide what to suggest.
    """
    # The option of `concertino serve` for such an address, and its value.
    kind, _, place = address.partition(":")
    if is_url(address):
        url = urlsplit(address)
        if (hint := _explain_connecting(url, error)) is not None:
            return hint
        kind, place = "http", url.netloc
        if "no WebSocket: HTTP" in str(error):
            http_url = url._replace(scheme=url.scheme.replace("ws", "http")).geturl()
            return f"the server is there, and serves no WebSocket; without one: -- {http_url}"
        if url.scheme in ("https", "wss") or not is_loopback(url.hostname or ""):
            return "check the URL, and whether the server runs"
        if url.port is None:
            return "the URL has no port, so 80 was tried; for example: -- http://127.0.0.1:8000/mcp"
    option = " --websocket" if address.startswith("ws:") else ""
    return (
        f"to start a server there: concertino serve server.py --{kind} {shlex.quote(place)}{option}"
    )


def _explain_connecting(url: SplitResult, error: Disconnected) -> str | None:
    """Return a hint if the host has no address, if TLS has failed, or if the server needs TLS.

    Returns None for any other error.
    """
    cause, text = error.__cause__, str(error)
    if isinstance(cause, socket.gaierror):
        return "check the name of the host in the URL"
    if is_tls_error(cause):
        if "certificate" in text:
            return "SSL_CERT_FILE=FILE names a file with the certificates to trust"
        plain_url = url._replace(scheme=url.scheme.removesuffix("s")).geturl()
        return f"the server speaks no TLS there; without it: -- {plain_url}"
    if url.scheme == "http" and "no HTTP/1.1" in text:
        return f"if the server speaks TLS there: -- {url._replace(scheme='https').geturl()}"
    return None


def suggest_http(address: str, text: str) -> str:
    """Return a hint for a socket at which a program listens that does not speak MCP.

    If the program speaks HTTP at a TCP port, the hint has the URL to use instead. Otherwise it says
    how to start a server.

    address: unix:PATH or tcp:HOST:PORT.
    text: the error, which quotes what was received.
    """
    kind, _, place = address.partition(":")
    if kind == "tcp" and "'HTTP/1" in text:
        return f"it speaks HTTP: write -- http://{place}/mcp"
    return "something else listens there; a server is started with concertino serve"


def suggest_path(address: str, text: str) -> str:
    """Return a hint with the URL to use instead, if the host or path of a URL may be wrong.

    Returns "" if host and path seem right, or if the address is not a URL.

    address: the address of the server, as the user has written it.
    text: the error that the first request got.
    """
    if not is_url(address):
        return ""
    url = urlsplit(address)
    if url.hostname == "0.0.0.0":
        client_url = url._replace(netloc=url.netloc.replace("0.0.0.0", "127.0.0.1")).geturl()
        return f"0.0.0.0 stands for all addresses of a server; for a client: -- {client_url}"
    if url.path.rstrip("/") == "/mcp" or WRONG_PATH.search(text) is None:
        return ""
    return f"most servers have the path /mcp: -- {url._replace(path='/mcp').geturl()}"
