"""ChannelEnding: whether and why a client's connection has ended.

ChannelEnding also makes the errors of the requests that get no response because of the end.
"""

from __future__ import annotations

from collections.abc import Callable

from concertino.errors import ConcertinoError, Disconnected
from concertino.jsonrpc.messages import Id

__all__ = ["ChannelEnding", "UnreadRequest"]

# The type of a function that returns an error of the same class, with facts about the server's
# process added to the text.
Explain = Callable[[ConcertinoError], ConcertinoError]


class UnreadRequest(Disconnected):
    """The error of a request that the server had not read when the connection ended.

    The server has done nothing for this request, so the client may send it again.
    error: the error of the ended connection, whose text and attributes are taken over.
    waited_s: how many seconds the request had waited when the connection ended.
    """

    def __init__(self, error: Disconnected, waited_s: float) -> None:
        super().__init__(str(error), error.exit_status, error.stderr)
        self.waited_s = waited_s

    def time_left(self, timeout_s: float) -> float:
        """Return how much of a time limit is left after waited_s, in seconds; at least 1 ms."""
        return max(0.001, timeout_s - self.waited_s)


class ChannelEnding:
    """Whether and why a Channel has ended.

    explain: a function that takes an error, and returns one of the same class whose text also has
        facts about the server's process, such as the exit code.

    Attributes:
    over: whether the connection has ended.
    by_client: whether this client closes the connection, or has closed it.
    fault: the fault of the server because of which the client has closed the connection; "" if
        there was none.
    reason: the text of the error with which the connection has ended; "" for an orderly end.
    unread: the ids of the requests that the server had not read, which may be sent again after its
        restart; None before the end, and if the server is not restarted.
    """

    def __init__(self, explain: Explain) -> None:
        self.over = False
        self.by_client = False
        self.fault = ""
        self.reason = ""
        self.unread: frozenset[Id] | None = None
        self.explain = explain

    def disconnected(
        self,
        label: str,
        waited_s: float = 0.0,
        id: Id | None = None,
    ) -> Disconnected:
        """Return the error for a request that gets no response, because the connection has ended.

        The error is an UnreadRequest if the request may be sent again.
        label: the method and subject of the request, for the text.
        waited_s: how many seconds the request has waited, for the text; 0 to leave it out.
        id: the id of the request; None if it was not sent.
        """
        text = f"{label}: the connection ended before the answer came"
        if waited_s:
            text += f", after {waited_s:.3g} s"
        error = self.explain(Disconnected(text))
        # For the type checker: explain() returns an error of the same class.
        if not isinstance(error, Disconnected):
            error = Disconnected(str(error))
        # A request that was not sent was not read either.
        if self.unread is not None and (id is None or id in self.unread):
            return UnreadRequest(error, waited_s)
        return error
