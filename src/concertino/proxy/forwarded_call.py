"""The calls that a proxy has forwarded to its server and that are not answered yet.

While a call runs, a server of a revision before 2026-07-28 may send requests such as
`elicitation/create` to its client. This module calls such a request a Question. A client of
2026-07-28 cannot get requests; it gets the question in an `input_required` result instead.
SuspendableCall converts between the two ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.json import encode

from concertino.backend.callback_calls import EndsCalls
from concertino.backend.caller import Caller
from concertino.backend.interface import Call, Context
from concertino.client.pending_request import ForwardedReply
from concertino.errors import INTERNAL_ERROR, RpcError
from concertino.protocol.dialogue import INPUT_METHODS
from concertino.protocol.revisions import REVISION_BY_NAME, Revision
from concertino.types.client_requests import InputRequest

__all__ = ["CallbackCall", "ForwardedCall", "Question", "SuspendableCall"]

# The server's questions are passed to the client when the server has asked nothing more for this
# time, in seconds: a server that needs three answers usually asks three questions in a row.
QUIET_S = 0.05


class Question:
    """A request of a server to its client, such as `elicitation/create`.

    Only servers of revisions before 2026-07-28 send such requests.

    method, params: the method and the undecoded params of the request.

    Attributes:
    answer: a future for the client's undecoded result. If the question fails, the future gets the
        RpcError for the server. If the server no longer waits for the answer, it is cancelled.
    """

    __slots__ = ("answer", "method", "params")

    def __init__(self, method: str, params: bytes) -> None:
        self.method = method
        self.params = params
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Return whether the question is still unanswered and the server still waits for it."""
        return not self.answer.done()

    def to_input_request(self) -> Raw:
        """Return the request as a member of `inputRequests` (2026-07-28)."""
        return Raw(encode(InputRequest(self.method, Raw(self.params))))


class ForwardedCall(Struct, eq=False):
    """A call that a proxy has forwarded, and that waits for the server's result.

    method: the method of the call.
    context: the Context of the client's request. If the client has repeated the call to answer
        questions, it is the Context of the last request.
    """

    method: str
    context: Context

    @property
    def principal(self) -> bytes:
        """Return the verified identity of the client's user; b"" if it is not known."""
        session = self.context.caller.session
        return b"" if session is None else session.principal

    @property
    def is_abandoned(self) -> bool:
        """Return whether the client has disconnected for good."""
        session = self.context.caller.session
        return session is not None and session.has_left

    @property
    def is_modern(self) -> bool:
        """Return whether the client speaks revision 2026-07-28."""
        return REVISION_BY_NAME[self.context.client.protocol_version].modern

    def accepts_questions(self) -> bool:
        """Return whether a request of the server can be passed on to the client of this call."""
        return not self.is_modern and self.context.caller.session is not None


class CallbackCall(ForwardedCall, eq=False):
    """A call for which no task waits: a callback passes the result on to the client.

    If a server of an older revision asks a client of 2026-07-28 something during the call, a
    SuspendableCall continues the call, and a task waits for the result.

    call: the client's request.
    caller: `context.caller`.
    revision: the revision of the server.
    runner: the part of the runtime that has begun this call. runner.end_call(slot, ...) gets the
        result or the error, and sends it to the client.
    slot: the object by which the runner identifies this call.

    Attributes:
    reply: waits for the server's response; None before the request is sent, and after the response.
    suspendable: the SuspendableCall that continues this call; None if the server has asked nothing.
    """

    call: Call
    caller: Caller
    revision: Revision
    runner: EndsCalls
    slot: Any
    reply: ForwardedReply | None = None
    suspendable: SuspendableCall | None = None

    def accepts_questions(self) -> bool:
        # MCP 2026-07-28 allows `input_required` only as the result of some methods.
        if self.may_suspend:
            return self.method in INPUT_METHODS
        return super().accepts_questions()

    @property
    def may_suspend(self) -> bool:
        """Return whether a SuspendableCall continues this call if the server asks something."""
        return self.is_modern and not self.revision.modern


class SuspendableCall(ForwardedCall, eq=False):
    """A call to a server that can wait for answers of its client over several client requests.

    The client speaks 2026-07-28, and the server is older. When the server asks the client
    something, the client's request is answered with the question, while the call to the server goes
    on. The client's next request contains the answer.

    server_result: a task or future for the server's result. Cancelling it cancels the call at the
        server.

    Attributes:
    undeclared: the capabilities for which requests of the server were refused, because the client
        has not declared them.
    """

    server_result: asyncio.Future[Raw]
    # msgspec makes a new set and dict for each object.
    undeclared: set[str] = set()
    # The key of a question, such as `q1` -> the question.
    _questions: dict[str, Question] = {}
    # Set when there is a new question, and when the call has ended.
    _has_news: asyncio.Event = field(default_factory=asyncio.Event)
    # The number in the newest key; 0 before the first question.
    _last_key: int = 0

    def __post_init__(self) -> None:
        self.server_result.add_done_callback(self._on_result)

    def accepts_questions(self) -> bool:
        return self.method in INPUT_METHODS

    def add(self, question: Question) -> None:
        """Add a question of the server, and wake wait_for_result_or_question()."""
        self._last_key += 1
        self._questions[f"q{self._last_key}"] = question
        self._has_news.set()

    @property
    def questions(self) -> Mapping[str, Raw]:
        """Return the open questions as `inputRequests`: key -> question."""
        return {
            key: question.to_input_request()
            for key, question in self._questions.items()
            if question.is_open
        }

    async def wait_for_result_or_question(self) -> bool:
        """Wait until the server has sent its result or asked something.

        Returns True if there is a result or an error, and False if there are `questions`. After a
        question, waits 50 ms for the next one. If the task that waits is cancelled, the call to the
        server is cancelled, too.
        """
        try:
            while not self.server_result.done():
                self._has_news.clear()
                try:
                    is_asked = any(item.is_open for item in self._questions.values())
                    async with asyncio.timeout(QUIET_S if is_asked else None):
                        await self._has_news.wait()
                except TimeoutError:
                    # The server may have withdrawn its questions while this method waited.
                    if self.questions:
                        break
        except asyncio.CancelledError:
            self.server_result.cancel()
            raise
        return self.server_result.done()

    def resume(self, context: Context, answers: Mapping[str, Raw]) -> None:
        """Pass the answers in the client's next request on to the server, which continues the call.

        context: the Context of that request.
        answers: key of a question -> the client's undecoded answer.
        """
        self.context = context
        for key, question in self._questions.items():
            if question.is_open and key in answers:
                question.answer.set_result(bytes(answers[key]))

    def refuse_questions(self, text: str) -> None:
        """Answer the open questions with an error, because the client will not answer them.

        text: the reason, which the server gets.
        """
        for question in self._questions.values():
            if question.is_open:
                error = RpcError(INTERNAL_ERROR, f"Internal error: {text}")
                question.answer.set_exception(error)

    def _on_result(self, server_result: asyncio.Future[Raw]) -> None:
        # exception() marks the exception as retrieved. Otherwise asyncio would log it if the client
        # never sends its next request.
        if not server_result.cancelled():
            server_result.exception()
        self.refuse_questions("the call that the question belongs to has ended")
        self._has_news.set()
