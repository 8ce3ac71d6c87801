"""aioquic and qh3 as the client of a QUIC connection: CPU time of the client process for a request.

    python bench/quic_libraries.py [--rounds 5]

Needs aioquic, qh3 and cryptography. A server process with aioquic hands 100 bytes back. In
alternating rounds, a client process of each library sends 1,000 requests one after the other, then
3,000 with 64 in flight, each on a stream of its own. Nothing of concertino is involved. Prints the
median and the smallest CPU time for a request, in microseconds, and the p50 of the first requests.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

LIBRARIES = ("aioquic", "qh3")
SIZE, ALONE, TOGETHER, IN_FLIGHT = 100, 1000, 3000, 64


def write_certificate(folder: Path) -> None:
    """Write a certificate for localhost and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
    certificate = builder.sign(key, hashes.SHA256())
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(text)


async def run_server(folder: Path) -> None:
    """Hand back what comes on each stream, at the port that the first line of stdout names."""
    from aioquic.asyncio import QuicConnectionProtocol, serve
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import StreamDataReceived

    class Echo(QuicConnectionProtocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.data: dict[int, bytes] = defaultdict(bytes)

        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, StreamDataReceived):
                self.data[event.stream_id] += event.data
                if event.end_stream:
                    data = self.data.pop(event.stream_id)
                    self._quic.send_stream_data(event.stream_id, data, True)

    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["x"], max_data=2**30, max_stream_data=2**24
    )
    configuration.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server: Any = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Echo)
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.Event().wait()


async def run_client(library: str, port: int) -> None:
    """Measure one library, and print the result as JSON."""
    quic: Any = import_module(f"{library}.asyncio")
    received = import_module(f"{library}.quic.events").StreamDataReceived

    class Client(quic.QuicConnectionProtocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.waiting: dict[int, asyncio.Future[None]] = {}
            # Streams that qh3 has refused, because the server has not allowed more yet.
            self.unused: list[int] = []
            self.is_scheduled = False

        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, received) and event.end_stream:
                self.waiting.pop(event.stream_id).set_result(None)

        def _send(self) -> None:
            self.is_scheduled = False
            self.transmit()

        async def request(self) -> None:
            while True:
                stream = self.unused.pop() if self.unused else 0
                stream = stream or self._quic.get_next_available_stream_id()
                try:
                    self._quic.send_stream_data(stream, bytes(SIZE), True)
                    break
                except ValueError:
                    self.unused.append(stream)
                    await asyncio.sleep(0.001)
            # What is sent in one iteration of the loop leaves together.
            if not self.is_scheduled:
                self.is_scheduled = True
                self._loop.call_soon(self._send)
            self.waiting[stream] = self._loop.create_future()
            await self.waiting[stream]

    configuration = import_module(f"{library}.quic.configuration").QuicConfiguration(
        is_client=True, alpn_protocols=["x"], verify_mode=ssl.CERT_NONE, server_name="localhost"
    )
    options = {"configuration": configuration, "create_protocol": Client}
    async with quic.connect("127.0.0.1", port, **options) as client:
        for _ in range(200):
            await client.request()
        times: list[float] = []
        began = time.process_time()
        for _ in range(ALONE):
            sent = time.perf_counter()
            await client.request()
            times.append(time.perf_counter() - sent)
        alone = (time.process_time() - began) / ALONE
        left = iter(range(TOGETHER))

        async def work() -> None:
            for _ in left:
                await client.request()

        began = time.process_time()
        await asyncio.gather(*[work() for _ in range(IN_FLIGHT)])
        together = (time.process_time() - began) / TOGETHER
    values = {"alone": alone, "p50": statistics.median(times), "together": together}
    print(json.dumps({name: value * 1e6 for name, value in values.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        part, text = args.part[0], args.part[1]
        asyncio.run(run_server(Path(text)) if part == "server" else run_client(part, int(text)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_certificate(Path(folder))
        command = [sys.executable, __file__, "--part"]
        server = subprocess.Popen([*command, "server", folder], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            results: dict[str, list[dict[str, float]]] = {name: [] for name in LIBRARIES}
            for _ in range(args.rounds):
                for name in LIBRARIES:
                    output = subprocess.check_output([*command, name, port], text=True)
                    results[name].append(json.loads(output))
        finally:
            server.kill()
            server.wait()
    for name, rounds in results.items():
        for key in ("alone", "p50", "together"):
            values = [item[key] for item in rounds]
            print(f"{name:8} {key:9} median {statistics.median(values):6.1f} us, ", end="")
            print(f"least {min(values):6.1f} us")


if __name__ == "__main__":
    main()
