"""Limits: how much memory and time connections may take, as one frozen Struct.

    Limits(max_in_flight=10, drain_s=5)

Every limit can also be set with an environment variable: CONCERTINO_MAX_IN_FLIGHT=10.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields

from concertino.near_names import HintingStructMeta

__all__ = ["Limits"]

MIB = 2**20


class Limits(Struct, frozen=True, forbid_unknown_fields=True, metaclass=HintingStructMeta):
    """How much memory and time connections may take.

        run(server, limits=Limits(max_in_flight=10, drain_s=5))

    Limits() has the defaults, which let about 1,000 slow calls run at the same time. If no limits
    are passed to run(), it uses from_environment(), where environment variables set the limits. The
    name of a variable is the name of its limit in capitals after `CONCERTINO_`.
    The limits bound the memory for received messages and for output that the other side has not
    read. They do not bound the memory that handlers allocate. Most limits apply to each connection
    alone; the text says so if one does not.

    max_message_bytes: the size of the longest frame, in either direction, without its newline. (A
        frame is the JSON text of one message or batch.)
    high_water_bytes: when this much output is buffered, no more calls start and no more input is
        read. The results of the calls that run then may be buffered up to max_unread_bytes.
    low_water_bytes: when the buffered output has fallen below this, calls start again and input is
        read again.
    max_in_flight: the number of calls that run at the same time.
    max_in_flight_bytes: a call starts only while the frames of all running calls together have
        fewer bytes than this.
    max_waiting, max_waiting_bytes: the number of calls that wait until they may start, and the
        bytes of their frames. A call that would exceed one of these two limits gets the error
        -31001 (busy).
    max_batch: the number of messages in one JSON-RPC batch. Only 2025-03-26 has batches.
    max_subscriptions: the number of resources to which one client subscribes.
    max_listening: the number of open subscriptions/listen requests of one client.
    max_questions: the number of requests of this server to one client that wait for a response.
        Since 2026-07-28 servers send no requests.
    progress_per_s, logs_per_s: how many progress notifications, and how many log messages, one call
        may send per second; this many may also come at once. If there are more, only the newest one
        is kept, and sent later.
    garbage_answers_per_s: how many error responses to input without a readable id are sent per
        second; this many may also be sent at once.
    max_connections: the number of clients of one listening socket. The default is half of 1024,
        which is the usual limit for file descriptors.
    drain_s: how many seconds a shutdown waits for running calls, and for output to be read.
    max_unread_bytes: how many bytes of output a client may leave unread. A call starts only if the
        unread output, with the probable results of this call and of those that run, stays within
        the limit. A large result that exceeds the limit waits. If the client reads nothing for
        drain_s seconds, waiting results are dropped.
    max_unread_bytes_total: how many bytes of output all clients of the process together may leave
        unread.
    opening_s: how many seconds a client's first request waits while the server is starting. If the
        start fails in this time, the request is answered with the reason. After this time,
        `initialize` and `server/discover` are answered although the server is still starting, and
        calls wait for it.
    Raises ValueError for a value that is not positive or not finite.
    """

    max_message_bytes: int = 10 * MIB
    high_water_bytes: int = MIB
    low_water_bytes: int = MIB // 4
    max_in_flight: int = 1024
    max_in_flight_bytes: int = 16 * MIB
    max_waiting: int = 4096
    max_waiting_bytes: int = 16 * MIB
    max_batch: int = 1024
    max_subscriptions: int = 1024
    max_listening: int = 64
    max_questions: int = 256
    progress_per_s: int = 100
    logs_per_s: int = 1000
    garbage_answers_per_s: int = 10
    max_connections: int = 512
    drain_s: float = 2.0
    max_unread_bytes: int = 64 * MIB
    max_unread_bytes_total: int = 256 * MIB
    opening_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}: expected a positive number, got {value!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """Return the limits that variables such as CONCERTINO_MAX_MESSAGE_BYTES set.

        Limits without a variable have their default.
        environment: usually os.environ.
        Raises ValueError for an invalid value; its text names the variable and the value.
        """
        texts = {
            field_name: text
            for field_name in cls.__struct_fields__
            if (text := environment.get(_variable_of(field_name))) is not None
        }
        # Resolving the types of the fields takes 0.2 ms, and most environments set no limit.
        if not texts:
            return cls()

        values: dict[str, int | float] = {}
        types = {field.name: field.type for field in fields(cls)}
        for field_name, text in texts.items():
            field_type = types[field_name]
            try:
                value = convert(text, field_type, strict=False)
            except ValidationError:
                value = 0
            if not 0 < value < float("inf"):
                kind = "a positive integer" if field_type is int else "a positive number"
                raise ValueError(f"{_variable_of(field_name)}: expected {kind}, got {text!r}")
            values[field_name] = value

        # Each value was converted to the type of its field.
        return cls(**values)  # pyright: ignore[reportArgumentType]


def _variable_of(field_name: str) -> str:
    """Return the environment variable that sets a limit."""
    return "CONCERTINO_" + field_name.upper()
