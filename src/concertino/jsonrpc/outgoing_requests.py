"""The requests that this side sends, and how a response ends them: PendingTable.

A Peer (jsonrpc/peer.py) has one PendingTable. The table assigns the ids, keeps the deadlines in
order, and calls the function of the request that a response answers.
Spec: JSON-RPC 2.0, sections 5 and 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Raw, Struct
from msgspec.json import decode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import Disconnected, ProtocolError, RpcError
from concertino.jsonrpc.messages import ABSENT, MALFORMED, InvalidMessage, Message

__all__ = ["OutgoingRequest", "PendingTable", "parse_error"]

# The beginnings of the texts of InvalidMessages. fail_answered() removes them, because its error
# begins with words of its own.
KINDS_OF_FAULTS = (MALFORMED, "Parse error: ", "Invalid Request: ")
# A string with more digits is no id of ours. The first id has at most 10 digits, and ids count up.
MAX_DIGITS = 18


# Only type checkers need this class. Making a Protocol at run time takes 0.05 ms.
if TYPE_CHECKING:

    class PendingRequest(Protocol):
        """What PendingTable needs of a request that this end has sent.

        OutgoingRequest has it, and so has the class of client/pending_request.py.
        """

        @property
        def id(self) -> int:
            """Return the id of the JSON-RPC request."""
            ...

        @property
        def deadline(self) -> float | None:
            """Return the time at which Peer.expire() abandons the request, by the peer's clock.

            None means that it waits for ever.
            """
            ...

        @property
        def done(self) -> Callable[[Raw | Exception], object]:
            """Return the function that is called once, with the result or an exception."""
            ...


class OutgoingRequest(Struct, eq=False):
    """A request that Peer.request() has sent.

    id: the id of the JSON-RPC request.
    done: called once, with the undecoded result or an exception.
    deadline: the time at which Peer.expire() abandons the request, by the peer's clock; None to
        wait for ever.
    """

    id: int
    done: Callable[[Raw | Exception], object]
    deadline: float | None = None


class PendingTable(dict[int, "PendingRequest"]):
    """The requests that this end has sent and that wait for a response, by id.

    Each is an OutgoingRequest, or a request of a client (client/pending_request.py).

    first_id: the id of the first request; the following ids count up from it.
    """

    __slots__ = ("_deadlines", "next_id")

    def __init__(self, first_id: int) -> None:
        self.next_id = first_id
        # A heap of (deadline, id). To save a search for each response, the entry of an answered
        # request stays in the heap until it is at the top, or until most entries are of answered
        # requests.
        self._deadlines: list[tuple[float, int]] = []

    def add(
        self, done: Callable[[Raw | Exception], object], deadline: float | None
    ) -> OutgoingRequest:
        """Add a request with the next unused id, and return it.

        done: called once, with the undecoded result or an exception.
        deadline: the time at which Peer.expire() abandons the request, by the peer's clock; None to
            wait for ever.
        """
        outgoing = OutgoingRequest(self.next_id, done, deadline)
        self.next_id += 1
        self[outgoing.id] = outgoing
        if deadline is not None:
            heappush(self._deadlines, (deadline, outgoing.id))
        return outgoing

    @property
    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a pending request; None if none of them has one."""
        # Rebuild the heap when most of its entries belong to answered requests. That is not worth
        # it for a heap of some dozen entries.
        if len(self._deadlines) > 2 * len(self) + 64:
            self._deadlines = [
                (pending.deadline, pending.id)
                for pending in self.values()
                if pending.deadline is not None
            ]
            heapify(self._deadlines)

        while self._deadlines and self._deadlines[0][1] not in self:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_first_deadline(self) -> PendingRequest:
        """Return the request to which next_deadline belongs, and forget this deadline.

        The request stays in the table. Call this only directly after next_deadline, if it was not
        None; for an answered request it would raise KeyError.
        """
        return self[heappop(self._deadlines)[1]]

    def receive(self, response: Message) -> bool:
        """Remove the request that a response answers, and pass the outcome to its `done`.

        Returns False if no pending request has the id of the response.
        """
        id = response.id
        # The cast is harmless: our ids are integers, and any other id is not in the table.
        outgoing = self.pop(cast("int", id), None)
        if outgoing is None:
            if type(id) is not str:
                return False
            # Some servers write "5" for 5. The response is malformed, but the request that it
            # answers is known and can fail.
            text = f"{MALFORMED}id: expected an integer, got a string"
            return self.fail_answered(InvalidMessage(0, text, answered_ids=(id,)))
        if response.error is ABSENT:
            outgoing.done(response.result)
        else:
            outgoing.done(parse_error(response.error))
        return True

    def fail_answered(self, invalid: InvalidMessage) -> bool:
        """Fail the requests whose ids are in `invalid.answered_ids`, with a ProtocolError.

        An id that is an integer in a string, such as "5", stands for that integer.
        Returns whether at least one pending request had such an id.
        """
        reason = invalid.message
        for prefix in KINDS_OF_FAULTS:
            reason = reason.removeprefix(prefix)
        failed = False
        for id in invalid.answered_ids:
            if type(id) is str and id.isascii() and id.isdigit() and len(id) <= MAX_DIGITS:
                id = int(id)
            outgoing = self.pop(cast("int", id), None)
            if outgoing is not None:
                failed = True
                outgoing.done(ProtocolError(f"the answer is malformed: {reason}"))
        return failed

    def disconnect(self, text: str) -> None:
        """Remove all requests, and pass Disconnected(text) to the `done` of each."""
        pending = list(self.values())
        self.clear()
        self._deadlines.clear()
        for outgoing in pending:
            outgoing.done(Disconnected(text))


class _ErrorBody(Struct):
    """The `error` member of a response; JSON-RPC 2.0 section 5.1 requires code and message."""

    code: int
    message: str
    data: Any = None


def parse_error(error: Raw) -> RpcError | ProtocolError:
    """Return the `error` member of a response as an exception.

    Returns an RpcError, or a ProtocolError if the member is malformed.
    """
    try:
        body = decode(error, type=_ErrorBody)
    except DECODE_ERRORS as exc:
        text = f"expected an error object with a code and a message: {exc}"
        return ProtocolError(text)
    return RpcError(body.code, body.message, body.data)
