"""Answers calls that did not simply return a result.

CallRunner sends a plain result itself, and calls one of these functions in all other cases:

- end_call: the call has raised an exception, or asked its client something before it ended.
- finish_call: the hooks of a guard must see the result (protocol/call_hooks.py).
- answer_unsent: Session.respond() has raised an exception instead of sending the result.
- answer_call: the hooks have made the result, for example because the time limit has passed.

Each function sends one response, unless the request is no longer open. There is one exception: in
revisions before MCP 2026-07-28, a backend that returns an InputRequired is called again with the
client's answers (_retry_with_answers), and the response follows later. For a call that has become a
task, CallRunner calls release_task() first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from concertino.errors import (
    INTERNAL_ERROR,
    InsufficientScope,
    InvalidClientResponse,
    MissingCapability,
    RpcError,
)
from concertino.protocol.call import Call, InputRequired
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.session import is_refusing_scopes
from concertino.protocol.wire_results import InputRequiredSignal
from concertino.runtime.context import CallContext
from concertino.types.results import error_result

if TYPE_CHECKING:
    from concertino.runtime.call_connection import AnsweringConnection

__all__ = ["answer_call", "answer_unsent", "end_call", "finish_call", "release_task"]

log = logging.getLogger("concertino.host")


def release_task(request: SessionRequest) -> None:
    """Release what a call needed for its task: its `on_cancel`, and the timer of its time limit.

    Called when the task has ended.
    """
    # `on_cancel` refers to the request, so this breaks a reference cycle, which would keep the
    # request's message in memory until the next garbage collection.
    request.on_cancel = None
    if request.timer is not None:
        request.timer.on_work_done()
        request.timer = None


def end_call(
    connection: AnsweringConnection,
    request: SessionRequest,
    result: Struct | Raw,
    error: BaseException | None,
) -> None:
    """Answer a call that has raised an exception, or has asked its client something.

    First calls the hooks, the functions of a guard (protocol/call_hooks.py), which may replace the
    exception or the result. If the response is `input_required`, no hook gets the result.
    result: the return value of the handler; ignored if `error` is not None.
    error: the exception that the handler has raised; None if it has returned.
    """
    hooks = request.hooks
    if hooks is not None and error is not None:
        # fail() returns the exception that is sent instead.
        error = hooks.fail(error)
        request.hooks = hooks = None

    if request.dialogue is not None and request.dialogue.suspended and request.open:
        # The handler has asked the client something that has no answer so far. Even if the handler
        # has caught the exception Suspended, its own result or exception must not be sent. A guard
        # has nothing to do with it either: the client repeats the call, and hooks see that result.
        request.hooks = None
        reply = partial(connection.session.reply_suspended, request)
        return _reply_input_required(connection, request, reply)

    if error is not None or hooks is None:
        return answer_call(connection, request, result, error)
    return finish_call(connection, request, result)


def finish_call(
    connection: AnsweringConnection, request: SessionRequest, result: Struct | Raw
) -> None:
    """Pass a call's result to the call's hooks, and send the result or error that they make of it.

    The hooks are the functions of a guard (CallHooks), which may change the result.
    result: the return value of the handler.
    """
    hooks = request.hooks
    assert hooks is not None
    request.hooks = None
    error: BaseException | None = None
    try:
        result = hooks.finish(result)
    except BaseException as exc:
        error = exc
    return answer_call(connection, request, result, error)


def answer_call(
    connection: AnsweringConnection,
    request: SessionRequest,
    result: Struct | Raw,
    error: BaseException | None,
) -> None:
    """Answer a call with `error`, or with `result` if `error` is None. Does not call hooks."""
    if error is not None:
        return _answer_error(connection, request, error)
    try:
        connection.session.respond(request, result)
    except BaseException as exc:
        answer_unsent(connection, request, result, exc)
    return None


def answer_unsent(
    connection: AnsweringConnection,
    request: SessionRequest,
    result: Struct | Raw,
    exc: BaseException,
) -> None:
    """Answer a call whose result could not be sent, because Session.respond() raised `exc`.

    - InputRequiredSignal: the result is an InputRequired, so ask the client the questions in it.
    - Any other exception, such as MemoryError: send an error response. If respond() has closed the
      request already, log a fault of concertino and end the connection.
    """
    request.hooks = None
    if isinstance(exc, InputRequiredSignal):
        assert isinstance(result, InputRequired)
        return _on_input_required(connection, request, result)
    if not request.open:
        return connection.report_fault("an answer could not be written")
    return _answer_error(connection, request, exc)


def _answer_error(
    connection: AnsweringConnection, request: SessionRequest, error: BaseException
) -> None:
    """Answer a call with the error response for an exception."""
    if isinstance(error, (MissingCapability, InvalidClientResponse)):
        return _report_client_fault(connection, request, error)
    if isinstance(error, RpcError):
        return _fail(connection, request, error)
    if isinstance(error, asyncio.CancelledError):
        # When the client cancels, the request is no longer open and _fail() sends nothing. If the
        # request is open, the handler has cancelled its own task.
        text = "Internal error: the call was cancelled by its handler"
        return _fail(connection, request, RpcError(INTERNAL_ERROR, text))
    # SystemExit comes here too: no handler can end the server.
    if request.open:
        log.error("%s failed", request.method, exc_info=error)
    return _fail(connection, request, RpcError(INTERNAL_ERROR, "Internal error"))


def _fail(connection: AnsweringConnection, request: SessionRequest, error: RpcError) -> None:
    """Send an error response, even if the backend has put invalid values into the error."""
    code, message = error.code, error.message
    is_text = isinstance(message, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    if type(code) is not int or not is_text:
        log.error(
            "%s: an RpcError needs an int and a str, got %r and %r",
            request.method,
            code,
            message,
        )
        code, message = INTERNAL_ERROR, "Internal error"

    # The data may have no JSON form, and the text may contain a lone surrogate. Then send less,
    # so that the client gets a response in any case.
    for text, data in ((message, error.data), (message, None), ("Internal error", None)):
        try:
            # An HTTP connection reads this while fail() writes the response: an access token with
            # too few scopes is answered with an HTTP status of its own.
            is_refusing_scopes.set(isinstance(error, InsufficientScope))
            # error.revision: the revision of MCP that a forwarded error has come in; usually None.
            return connection.session.fail(request, code, text, data, error.revision)
        except Exception as exc:
            if not request.open:
                break
            log.error("%s: an error answer could not be written: %s", request.method, exc)
        finally:
            is_refusing_scopes.set(False)
    return connection.report_fault("a call could not be answered")


def _reply_input_required(
    connection: AnsweringConnection,
    request: SessionRequest,
    reply: Callable[[], None],
) -> None:
    """Answer a call with `input_required`; if that is not possible, with an error.

    reply: sends the response `input_required`.
    """
    if request.dialogue is not None:
        request.dialogue.suspended = False
    try:
        return reply()
    except RpcError as exc:
        return _answer_error(connection, request, exc)
    except Exception as exc:
        # The backend has made a mistake, such as a key that is not a string.
        log.error("%s: the client could not be asked: %s", request.method, exc)
        text = "Internal error: the client could not be asked"
        return _fail(connection, request, RpcError(INTERNAL_ERROR, text))


def _on_input_required(
    connection: AnsweringConnection, request: SessionRequest, input_required: InputRequired
) -> None:
    """Send the client requests in an InputRequired that a backend has returned.

    Since MCP 2026-07-28, the response to the call contains the client requests, and the client
    repeats the call with its answers. In older revisions, each client request is sent as a JSON-RPC
    request. When the client has answered, this function calls the backend again.
    """
    if request.profile.encoder.revision.modern:
        reply = partial(connection.session.reply_input_required, request, input_required)
        return _reply_input_required(connection, request, reply)
    return connection.run(_retry_with_answers(connection, request, input_required), request)


async def _retry_with_answers(
    connection: AnsweringConnection, request: SessionRequest, input_required: InputRequired
) -> Struct | Raw:
    """Send the client's questions to it, wait for the answers, and call the backend again."""
    from concertino.runtime.client_questions import send_questions

    dialogue = connection.session.dialogues.set_client_requests(request, input_required)
    if input_required.questions:
        await send_questions(connection.session, dialogue, input_required.questions, request.id)
    else:
        # send_questions() counts the rounds. Without questions count here, so that the limit also
        # ends a backend that asks for another round each time.
        dialogue.count_round()
    call = request.call
    request.call = Call(call.method, call.params, call.meta, dialogue.answers, input_required.state)
    return await connection.backend.handle(request.call, CallContext(connection, request))


def _report_client_fault(
    connection: AnsweringConnection, request: SessionRequest, error: RpcError
) -> None:
    """Answer a call whose client lacks a capability, or has sent a malformed answer.

    Before MCP 2026-07-28 there was no error code for this, so a tool call gets a result with
    isError.
    """
    if request.profile.encoder.revision.modern or request.method != "tools/call":
        return _fail(connection, request, error)
    # This result is small and has only text, so respond() does not fail here.
    connection.session.respond(request, error_result(error.message))
    return None
