"""ChannelEnding: whether and why a client's connection has ended, and the errors after its end."""

from __future__ import annotations

from collections.abc import Callable

from concertino.errors import ConcertinoError, Disconnected
from concertino.jsonrpc.messages import Id

__all__ = ["ChannelEnding", "UnreadRequest"]

# Returns the same error, with facts about the server's process added to its text.
Explain = Callable[[ConcertinoError], ConcertinoError]


class UnreadRequest(Disconnected):
    """The connection has ended before the server has read the request.

    So the server has done nothing for the request, which may be sent again.
    waited_s: how many seconds the request had waited when the connection ended.
    """

    def __init__(self, error: Disconnected, waited_s: float) -> None:
        super().__init__(str(error), error.exit_status, error.stderr)
        self.waited_s = waited_s

    def time_left(self, timeout_s: float) -> float:
        """Return the rest of a time limit in seconds; always positive."""
        return max(0.001, timeout_s - self.waited_s)


class ChannelEnding:
    """Whether and why a Channel has ended.

    explain: returns the same error, with facts about the server's process added to its text.

    Attributes:
    over: whether the connection has ended.
    by_client: whether this client closes the connection, or has closed it.
    fault: what the server did wrong, if the client has closed the connection for that reason; ""
        otherwise.
    unread: after the end, the ids of the requests that the server had not read, so that they may be
        sent again; None if that is not known.
    """

    def __init__(self, explain: Explain) -> None:
        self.over = False
        self.by_client = False
        self.fault = ""
        self.unread: frozenset[int] | None = None
        self.explain = explain

    def disconnected(
        self,
        label: str,
        waited_s: float = 0.0,
        id: Id | None = None,
    ) -> Disconnected:
        """Return the error for a request that gets no response, because the connection has ended.

        It is an UnreadRequest if the request may be sent again.
        label: names the request.
        waited_s: how long the request has waited, for the text; 0 to leave it out.
        id: the id of the request; None if it was not sent.
        """
        text = f"{label}: the connection ended before the answer came"
        if waited_s:
            text += f", after {waited_s:.3g} s"
        error = self.explain(Disconnected(text))
        if not isinstance(error, Disconnected):
            error = Disconnected(str(error))
        if self.unread is not None and (id is None or id in self.unread):
            return UnreadRequest(error, waited_s)
        return error
