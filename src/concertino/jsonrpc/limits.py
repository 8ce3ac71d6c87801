"""What a connection may cost: one frozen table of limits, each with its unit and its source."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields

__all__ = ["Limits"]

MIB = 2**20


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds for one connection, and for how many there may be. Every one can be set by `CONCERTINO_` and its name in capitals.

    The defaults let 1,000 slow calls run side by side, and bound what is kept of messages that came and of output that is not
    read. What a handler makes of its arguments is its own. Raises ValueError for a value that is not positive.
    """

    max_message_bytes: int = 10 * MIB  # one frame, in either direction, without its newline
    high_water_bytes: int = MIB  # output held above this: no call is admitted, reading pauses
    low_water_bytes: int = MIB // 4  # output held below this again: both go on
    max_in_flight: int = 1024  # calls being worked on
    max_in_flight_bytes: int = (
        16 * MIB
    )  # of the frames of those; a call is admitted while they are fewer
    max_waiting: int = 4096  # calls received and not yet admitted ...
    max_waiting_bytes: int = (
        16 * MIB
    )  # ... and the bytes of their frames; beyond either: -31001 busy
    max_batch: int = 1024  # messages in one JSON-RPC batch, 2025-03-26 only
    max_subscriptions: int = 1024  # resources whose changes one client asks to hear of
    max_listening: int = 64  # subscriptions/listen requests that are open at once
    max_questions: int = (
        256  # requests of the server's that the client has not answered; before 2026-07-28
    )
    progress_per_s: int = 100  # progress told of one call; also the burst; beyond it the newest is kept, and told later
    logs_per_s: int = 1000  # log messages sent for one call; also the burst; beyond it the newest is kept, and sent later
    garbage_answers_per_s: int = 10  # answers to input without a usable id; also the burst
    max_connections: int = (
        512  # clients at once, on sockets; half of the descriptors that a process usually may have
    )
    drain_s: float = 2.0  # at the end: for calls under way, and for output that is not read

    def __post_init__(self) -> None:
        for each in fields(type(self)):
            value = getattr(self, each.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{each.name}: expected a positive number, got {value!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """Read `CONCERTINO_MAX_MESSAGE_BYTES=...` and its siblings.

        Raises ValueError that names the variable, what was expected and what came.
        """
        given: dict[str, int | float] = {}
        for each in fields(cls):
            name = "CONCERTINO_" + each.name.upper()
            text = environment.get(name)
            if text is None:
                continue
            try:
                value = convert(text, each.type, strict=False)
            except ValidationError:
                value = 0
            if not 0 < value < float("inf"):
                kind = "a positive integer" if each.type is int else "a positive number"
                raise ValueError(f"{name}: expected {kind}, got {text!r}")
            given[each.name] = value
        return cls(**given)  # pyright: ignore[reportArgumentType]  # each value was converted to its field's type
