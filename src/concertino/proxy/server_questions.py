"""ServerQuestions: passes the requests of a server of an old revision to the clients of a proxy.

Before revision 2026-07-28, a server asks its client with requests of its own, such as
`elicitation/create`. Over stdio, such a request does not say to which call it belongs. So the proxy
takes the newest pending call among those whose clients can be asked, and asks the client of that
call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from concertino.backend.caller import CallerSession
from concertino.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, Disconnected, RpcError
from concertino.proxy.forwarded_call import (
    CallbackCall,
    ForwardedCall,
    Question,
    SuspendableCall,
)
from concertino.types.client_requests import CLIENT_REQUESTS

__all__ = ["ServerQuestions"]

# If there is no call whose client can be asked, a question waits for such a call for this time, in
# seconds.
WAIT_S = 60.0
# The largest number of questions that wait.
MAX_WAITING = 16
CLIENT_HAS_LEFT = "the client that was to be asked has left"


class ServerQuestions:
    """Passes the questions of one server to clients, and the clients' answers to the server.

    A question is a request of a server to its client, as in the revisions before 2026-07-28.

    calls: the pending calls, the newest last. The Upstream that owns this dict adds and removes
        them.
    suspend: replaces a CallbackCall in `calls` by a SuspendableCall, and returns the new call.
        Called before a client of 2026-07-28 is asked. Such a client gets the question as the
        response to its request; a SuspendableCall can wait for the next request with the answer.

    Attributes:
    waiting: the questions that came when no client could be asked, and that wait for the next call
        whose client can be asked.
    """

    def __init__(
        self,
        calls: dict[ForwardedCall, None],
        suspend: Callable[[CallbackCall], SuspendableCall],
    ) -> None:
        self.waiting: list[Question] = []
        self._calls = calls
        self._suspend = suspend

    async def answer(self, method: str, params: bytes) -> bytes:
        """Pass a request of the server to a client, and return the client's result undecoded.

        If no client can be asked now, waits at most a minute for a call whose client can be asked.
        The caller cancels this coroutine if the server withdraws its request.
        method, params: the method and the undecoded params of the request.
        Raises RpcError with the error that the server should get.
        """
        question = Question(method, params)
        if (call := self._find_call_to_ask()) is not None:
            if isinstance(call, CallbackCall) and call.may_suspend:
                return await self._ask(question, self._suspend(call))
            return await self._ask(question, call)
        if len(self.waiting) >= MAX_WAITING:
            raise RpcError(INTERNAL_ERROR, "Internal error: no client can be asked now")
        self.waiting.append(question)
        try:
            async with asyncio.timeout(WAIT_S):
                return await question.answer
        except TimeoutError:
            text = f"no client made a call within {WAIT_S:g} s that could be asked"
            raise RpcError(INTERNAL_ERROR, f"Internal error: {text}") from None
        finally:
            # If the server has withdrawn the question, drop an answer that comes later. This does
            # nothing if the question has its answer.
            question.answer.cancel()
            if question in self.waiting:
                self.waiting.remove(question)

    def _find_call_to_ask(self) -> ForwardedCall | None:
        """Return the newest call whose client can be asked; None if there is no such call.

        If this client has disconnected, returns the newest other call of the same user. Raises
        RpcError if this user has none.
        """
        calls = [call for call in reversed(self._calls) if call.accepts_questions()]
        if not calls:
            return None
        # The server does not say for which call it asks, and no other user may see the question.
        newest = calls[0]
        for call in calls:
            if not call.is_abandoned and call.principal == newest.principal:
                return call
        raise RpcError(INTERNAL_ERROR, f"Internal error: {CLIENT_HAS_LEFT}")

    async def _ask(self, question: Question, call: ForwardedCall) -> bytes:
        """Ask the client of a call, and return its undecoded result. Raises RpcError."""
        feature = CLIENT_REQUESTS.get(question.method)
        if feature is not None and feature not in call.context.client.capabilities:
            if isinstance(call, SuspendableCall):
                # If the call then fails, _take_result() in parked_calls.py tells the client why.
                call.undeclared.add(feature)
            text = f"method not found: the client has not declared {feature}"
            raise RpcError(METHOD_NOT_FOUND, text)
        if isinstance(call, SuspendableCall):
            call.add(question)
            try:
                return await question.answer
            finally:
                # If the server has withdrawn the question, do not send it to the client.
                question.answer.cancel()
        session = call.context.caller.session
        assert session is not None
        try:
            return bytes(await session.request(question.method, question.params))
        except Disconnected:
            raise RpcError(INTERNAL_ERROR, f"Internal error: {CLIENT_HAS_LEFT}") from None

    def adopt(self, call: ForwardedCall) -> None:
        """Ask the client of a new call all questions in `waiting`.

        Returns at once. Does nothing if this client cannot be asked.
        """
        if not call.accepts_questions():
            return
        questions, self.waiting = self.waiting, []
        for question in questions:
            # If one of the two futures is done, the other one is ended, too.
            asking = asyncio.ensure_future(self._ask(question, call))
            asking.add_done_callback(partial(_pass_answer, question))
            question.answer.add_done_callback(partial(_stop_asking, asking))

    def refuse_for(self, session: CallerSession) -> None:
        """Answer the questions to a client with an error, because this client has left.

        session: the session of the client.
        """
        for call in self._calls:
            if isinstance(call, SuspendableCall) and call.context.caller.session is session:
                call.refuse_questions(CLIENT_HAS_LEFT)


def _stop_asking(asking: asyncio.Future[bytes], answer: object) -> None:
    """Stop waiting for a client's response, because the question has an answer already."""
    asking.cancel()


def _pass_answer(question: Question, asking: asyncio.Future[bytes]) -> None:
    """Answer a question of the server with the response of a client, or with the client's error.

    Does nothing if the question has an answer already, or if the client is no longer asked.
    asking: the future for the client's response, which is done.
    """
    if not question.is_open or asking.cancelled():
        return
    if (error := asking.exception()) is not None:
        question.answer.set_exception(error)
    else:
        question.answer.set_result(asking.result())
