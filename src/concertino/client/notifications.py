"""NotificationDispatcher: passes a server's notifications to the functions given to Client.

These functions are the arguments `logged`, `changed`, `updated` and `notified` of Client. Progress
notifications go to the request to which they belong instead (client/pending_request.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.types.results import Level

__all__ = ["LISTS", "LogMessage", "NotificationDispatcher", "NotificationHandlers", "changed_list"]

# The lists whose changes a server may announce.
LISTS = ("tools", "prompts", "resources")
# This client logs at most this many characters of a server's log message.
MAX_LOGGED = 2000
# Level of a server's log message -> the level at which this client logs it.
LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


class LogMessage(Struct, frozen=True):
    """A log message that a server has sent to its client, in notifications/message.

    level: one of the eight levels of MCP, from "debug" to "emergency".
    data: the message; any JSON value, often a str.
    logger: the name of the server's logger; None if the server has not named one.
    """

    level: Level
    data: Any
    logger: str | None = None


class NotificationHandlers(Struct, frozen=True):
    """The functions for notifications that the user has passed to Client.

    The functions are called on the event loop. None: the user has not passed this function.

    on_log: the argument `logged` of Client. Called with each log message of the server.
    on_list_changed: the argument `changed`. Called with "tools", "prompts" or "resources" when this
        list has changed. May be an `async def`.
    on_resource_updated: the argument `updated`. Called with the URI of a resource with a
        subscription when the resource has changed.
    on_other: the argument `notified`. Called with the method and params of any other notification.
    """

    on_log: Callable[[LogMessage], object] | None = None
    on_list_changed: Callable[[str], object] | None = None
    on_resource_updated: Callable[[str], object] | None = None
    on_other: Callable[[str, dict[str, Any]], object] | None = None


_decode_log_message = Decoder(LogMessage).decode
_decode_text = Decoder(str).decode


def changed_list(method: str) -> str:
    """Return the list that a notification reports as changed: "tools", "prompts" or "resources".

    method: the method of the notification, such as "notifications/tools/list_changed".
    Returns "" for other methods and for unknown lists.
    """
    if method.endswith("/list_changed"):
        name = method.split("/")[1]
        if name in LISTS:
            return name
    return ""


class NotificationDispatcher:
    """Calls the user's functions for the notifications that arrive on one connection to a server.

    handlers: the user's functions.
    start_task: a function start_task(coroutine, name) that runs a coroutine as a task. The task is
        cancelled when the connection is closed.
    log: the logger for the server's log messages, if the user has passed no function for them.

    Attribute:
    tool_changes: how many times the server has reported that its list of tools has changed.
    """

    def __init__(
        self,
        handlers: NotificationHandlers,
        start_task: Callable[[Coroutine[Any, Any, None], str], object],
        log: logging.Logger,
    ) -> None:
        self.tool_changes = 0
        self._handlers = handlers
        self._start_task = start_task
        self._log = log
        # Name of a list for which on_list_changed is running -> whether the list has changed again
        # since that call of on_list_changed began.
        self._changing: dict[str, bool] = {}

    def dispatch(self, method: str, params: Mapping[str, Raw]) -> None:
        """Call the user's function for a notification. Without one, log messages are logged.

        Raises the function's exceptions, except those of on_list_changed.
        params: the params of the notification: name -> undecoded value.
        """
        handlers = self._handlers
        if method == "notifications/message":
            self._on_log_message(params)
        elif method == "notifications/resources/updated":
            if handlers.on_resource_updated is not None:
                handlers.on_resource_updated(_decode_text(params.get("uri", Raw(b'""'))))
        elif name := changed_list(method):
            if name == "tools":
                self.tool_changes += 1
            self.report_change(name)
        elif handlers.on_other is not None:
            handlers.on_other(method, decode(encode(params)))

    def _on_log_message(self, params: Mapping[str, Raw]) -> None:
        """Pass a log message of the server to the user's function, or log it if there is none."""
        try:
            message = _decode_log_message(encode(params))
        except DECODE_ERRORS:
            return
        if self._handlers.on_log is not None:
            self._handlers.on_log(message)
            return
        data = message.data
        text = redactor().text(data if isinstance(data, str) else encode(data).decode())
        level = LOG_LEVELS.get(message.level, logging.INFO)
        self._log.log(level, "the server says: %s", escape_controls(text[:MAX_LOGGED]))

    def report_change(self, name: str) -> None:
        """Call on_list_changed in a task, because a list has changed.

        Calls for one list never overlap. If the list changes during a call, once or more, there is
        one more call afterwards.
        name: the list: "tools", "prompts" or "resources".
        """
        if self._handlers.on_list_changed is None:
            return
        if name in self._changing:
            self._changing[name] = True
            return
        self._changing[name] = False
        self._start_task(self._handle_changes(name), f"{name} changed")

    async def _handle_changes(self, name: str) -> None:
        """Call on_list_changed for a list, and again if the list has changed during the call."""
        handler = self._handlers.on_list_changed
        assert handler is not None
        try:
            while True:
                self._changing[name] = False
                try:
                    result = handler(name)
                    if isawaitable(result):
                        await result
                except Exception:
                    self._log.exception("the changed function of this client failed")
                if not self._changing[name]:
                    break
        finally:
            del self._changing[name]
