"""How much memory idle HTTP connections take: plain, after a request, with a session, with TLS.

python bench/http_idle.py [--connections N] [--tls N]

Opens N connections (10,000, or what the limit of descriptors allows) to a server, and reports how
much its resident memory has grown for each. While they are open, another request is answered, so
all of them were accepted. Each kind has a server process of its own, which has answered a request
and dropped a hundred connections before.
The floor is an asyncio.Protocol with httptools that knows no MCP. Needs Linux, and openssl for TLS.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import ssl
import subprocess
import sys

from http_server import BOTH, ID, PROGRAMS, START_LIMIT_S, Row, make_request, running
from measure import pick_cores
from workshop import WORK, build_places, describe_interpreter, run, server_environment

# Sockets and files that are no idle connections.
SPARE = 200
SERVER = """
import sys
from concertino import Server
from concertino.http import HttpOptions, Tls
server = Server("bench")

@server.tool
async def echo(text: str) -> str:
    return text

tls = Tls(*sys.argv[2:]) if len(sys.argv) > 2 else None
options = HttpOptions(max_connections=20000, max_sessions=20000, tls=tls)
server.run(http=f"127.0.0.1:{sys.argv[1]}", http_options=options)
"""
MODERN = Row("idle", "", "", (), "modern")
SESSION = Row("idle-session", "", "", (), "session")
# Kind -> what the server is called, and the goal for a connection.
KINDS = {
    "plain": ("concertino", "<= 16 kB"),
    "after a request": ("concertino", "<= 20 kB"),
    "with a session": ("concertino", "<= 24 kB"),
    "TLS": ("concertino", "reported"),
    "floor, plain": ("floor", "-"),
    "floor, after a request": ("floor", "-"),
}


def connect(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=START_LIMIT_S)
    return sock if tls is None else tls.wrap_socket(sock)


def send(sock: socket.socket, request: bytes) -> None:
    """Send a request, and read its response. Raises RuntimeError if it was refused."""
    sock.sendall(request)
    if b" 200 " not in (head := sock.recv(65536))[:16]:
        raise RuntimeError(f"refused: {head[:200]!r}")


def measure(kind: str, command: list[str], count: int, tls: ssl.SSLContext | None) -> float:
    """Return how much the server grows for each of so many connections, in kB."""
    cores = pick_cores()
    with running(command, server_environment(), cores.server) as server:
        request = make_request(MODERN, server.port).replace(ID.encode(), b"1" * len(ID))
        for _ in range(100):
            with connect(server.port, tls) as sock:
                send(sock, request)
        before = server.rss_kb
        sockets: list[socket.socket] = []
        for _ in range(count):
            sock = connect(server.port, tls)
            if kind == "with a session":
                send(sock, opening(server.port))
            elif kind.endswith("after a request"):
                send(sock, request)
            sockets.append(sock)
        with connect(server.port, tls) as sock:
            send(sock, request)
        grown = server.rss_kb - before
        for sock in sockets:
            sock.close()
    return grown / count


def opening(port: int) -> bytes:
    """Return the request that opens a session."""
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        b'"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}'
    )
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: {BOTH}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def make_certificate() -> tuple[str, str]:
    """Make a certificate for this machine. Returns the files of the certificate and its key."""
    cert, key = str(WORK / "idle.crt"), str(WORK / "idle.key")
    subject = ("-subj", "/CN=localhost", "-days", "2", "-nodes")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    run(["openssl", "req", "-x509", *curve, *subject, "-keyout", key, "-out", cert])
    os.chmod(key, 0o600)
    return cert, key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000, metavar="N")
    parser.add_argument("--tls", type=int, default=1000, metavar="N", help="connections with TLS")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(options.connections, hard - SPARE)

    places = build_places(("concertino", "http_floor"), describe_interpreter(sys.executable), print)
    cert, key = make_certificate()
    client_tls = ssl.create_default_context(cafile=cert)
    client_tls.check_hostname = False
    python = {name: place.words["python"] for name, place in places.items()}
    ours = [python["concertino"], "-c", SERVER, "PORT"]
    floor = [python["http_floor"], str(PROGRAMS / "floor.py"), "PORT"]
    print("| idle connections | number | kB for each | goal |\n|---|---:|---:|---|")
    for kind, (name, goal) in KINDS.items():
        is_tls = kind == "TLS"
        command = floor if name == "floor" else [*ours, cert, key] if is_tls else ours
        number = options.tls if is_tls else count
        try:
            taken = measure(kind, command, number, client_tls if is_tls else None)
        except (RuntimeError, OSError, subprocess.SubprocessError) as exc:
            print(f"| {kind} | {number} | not measured: {exc} |")
        else:
            print(f"| {kind} | {number:,} | {taken:.1f} | {goal} |", flush=True)
    print(f"load: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
