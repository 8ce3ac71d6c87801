"""Limits: what one connection may cost, as one frozen table with units."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields

from concertino.near_names import HintingStructMeta

__all__ = ["Limits"]

MIB = 2**20


class Limits(Struct, frozen=True, forbid_unknown_fields=True, metaclass=HintingStructMeta):
    """Limits for each connection, and for the number of connections.

    Set a limit by keyword, or by the environment variable `CONCERTINO_` plus its name in capitals.
    The defaults let 1,000 slow calls run at the same time. They bound the memory for received
    messages and for output that the peer has not read; what a handler allocates is not counted.
    Raises ValueError for a value that is not positive.
    """

    # Length of one frame in either direction, without its newline.
    max_message_bytes: int = 10 * MIB

    # While more output than this is buffered, no call starts and reading pauses ...
    high_water_bytes: int = MIB
    # ... until less than this is buffered.
    low_water_bytes: int = MIB // 4

    # Calls that run at the same time.
    max_in_flight: int = 1024
    # A call starts only while the frames of the running calls have fewer bytes than this in total.
    max_in_flight_bytes: int = 16 * MIB

    # Calls that wait for their start, and the bytes of their frames. A call beyond either limit is
    # answered with -31001 (busy).
    max_waiting: int = 4096
    max_waiting_bytes: int = 16 * MIB

    # Messages in one JSON-RPC batch; only 2025-03-26 has batches.
    max_batch: int = 1024

    # Resources that one client subscribes to.
    max_subscriptions: int = 1024
    # subscriptions/listen requests of one client that are open at the same time.
    max_listening: int = 64
    # Requests of the server that the client has not answered; only before 2026-07-28.
    max_questions: int = 256

    # Progress notifications, and log messages, of one call per second; also the burst. Beyond the
    # rate only the newest notification is kept and sent later.
    progress_per_s: int = 100
    logs_per_s: int = 1000

    # Error responses to input without a readable id; also the burst.
    garbage_answers_per_s: int = 10

    # Clients at one listening socket at the same time: half of the usual limit of 1024 file
    # descriptors.
    max_connections: int = 512

    # Seconds that a shutdown waits for running calls, and for output that is not read.
    drain_s: float = 2.0

    # Output of one client, and of all clients of a process, that they have not read. A call starts
    # only while its result will probably fit; a large result beyond the limit waits for room, and
    # is dropped when nothing is read for `drain_s`.
    max_unread_bytes: int = 64 * MIB
    max_unread_bytes_total: int = 256 * MIB

    # Seconds that a client's first request waits for a server that is starting. If the start fails
    # meanwhile, the reason is the answer.
    opening_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field.name}: expected a positive number, got {value!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """Return the limits that variables such as CONCERTINO_MAX_MESSAGE_BYTES set.

        Limits without a variable keep their default. Raises ValueError that names the variable, the
        expected value and the actual one.
        """
        values: dict[str, int | float] = {}
        for field in fields(cls):
            name = "CONCERTINO_" + field.name.upper()
            text = environment.get(name)
            if text is None:
                continue

            try:
                value = convert(text, field.type, strict=False)
            except ValidationError:
                value = 0
            if not 0 < value < float("inf"):
                kind = "a positive integer" if field.type is int else "a positive number"
                raise ValueError(f"{name}: expected {kind}, got {text!r}")
            values[field.name] = value

        # Each value was converted to the type of its field.
        return cls(**values)  # pyright: ignore[reportArgumentType]
