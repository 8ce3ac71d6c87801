"""NotificationDispatcher: passes a server's notifications to the functions of a Client's user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.types.results import Level

__all__ = ["LISTS", "LogMessage", "NotificationDispatcher", "NotificationHandlers", "changed_list"]

# The lists whose changes a server may announce.
LISTS = ("tools", "prompts", "resources")
# Our log quotes at most this many characters of a server's log message.
MAX_LOGGED = 2000
# Level of a server's log message -> the level at which it is logged here.
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
    """A log message that the server has sent to this client.

    data: the message, any JSON value.
    logger: the name of the server's logger, or None.
    """

    level: Level
    data: Any
    logger: str | None = None


class NotificationHandlers(Struct, frozen=True):
    """The functions for notifications that the user has passed to Client; None for the others.

    They are called on the event loop.

    on_log: called with each log message; the argument `logged` of Client.
    on_list_changed: called with "tools", "prompts" or "resources"; may be an `async def`; the
        argument `changed` of Client.
    on_resource_updated: called with the URI of a subscribed resource; the argument `updated` of
        Client.
    on_other: called with the method and params of any other notification; the argument `notified`
        of Client.
    """

    on_log: Callable[[LogMessage], object] | None = None
    on_list_changed: Callable[[str], object] | None = None
    on_resource_updated: Callable[[str], object] | None = None
    on_other: Callable[[str, dict[str, Any]], object] | None = None


_decode_log_message = Decoder(LogMessage).decode
_decode_text = Decoder(str).decode


def changed_list(method: str) -> str:
    """Return the name of the list in a method `notifications/NAME/list_changed`; else ""."""
    if method.endswith("/list_changed"):
        name = method.split("/")[1]
        if name in LISTS:
            return name
    return ""


class NotificationDispatcher:
    """Calls the user's functions for the notifications of one conversation.

    handlers: the user's functions.
    start_task: runs a coroutine as a task, which is cancelled when the conversation ends.

    Attributes:
    tool_changes: how many times the list of tools has changed.
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
        # List for which on_list_changed is running -> whether it has changed again meanwhile.
        self._changing: dict[str, bool] = {}

    def dispatch(self, method: str, params: Mapping[str, Raw]) -> None:
        """Call the user's function for a notification."""
        handlers = self._handlers
        if method == "notifications/message":
            self._on_log_message(params)
        elif method == "notifications/resources/updated":
            if handlers.on_resource_updated is not None:
                handlers.on_resource_updated(_decode_text(params.get("uri", Raw(b'""'))))
        elif name := changed_list(method):
            self.tool_changes += name == "tools"
            self.report_change(name)
        elif handlers.on_other is not None:
            handlers.on_other(method, decode(encode(params)))

    def _on_log_message(self, params: Mapping[str, Raw]) -> None:
        try:
            message = _decode_log_message(encode(params))
        except DecodeError:
            return
        if self._handlers.on_log is not None:
            self._handlers.on_log(message)
            return
        data = message.data
        text = redactor().text(data if isinstance(data, str) else encode(data).decode())
        level = LOG_LEVELS.get(message.level, logging.INFO)
        self._log.log(level, "the server says: %s", escape_controls(text[:MAX_LOGGED]))

    def report_change(self, name: str) -> None:
        """Call on_list_changed for a list. While it runs, it is not called again for this list.

        If the list changes meanwhile, any number of times, it is called once more afterwards.
        """
        if self._handlers.on_list_changed is None:
            return
        if name in self._changing:
            self._changing[name] = True
            return
        self._changing[name] = False
        self._start_task(self._handle_changes(name), f"{name} changed")

    async def _handle_changes(self, name: str) -> None:
        """Call on_list_changed for a list until the list has not changed during the call."""
        handler = self._handlers.on_list_changed
        assert handler is not None
        try:
            # Repeat if the list has changed during the last call.
            while True:
                self._changing[name] = False
                result = handler(name)
                if isawaitable(result):
                    await result
                if not self._changing[name]:
                    break
        except Exception:
            self._log.exception("the changed function of this client failed")
        finally:
            del self._changing[name]
