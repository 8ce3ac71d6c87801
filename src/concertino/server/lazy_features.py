"""The rooms of a server that are opened when they are first needed: resources, prompts, completion.

Each is loaded with the first thing that it is to hold; a server of tools alone pays for none of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Raw, Struct
from msgspec.structs import replace

from concertino.backend.interface import Call, Context, ServerFeatures
from concertino.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    RegistrationError,
    RpcError,
    ToolError,
)
from concertino.schema.return_values import InvalidResult
from concertino.server.functions import Handler, InThread
from concertino.server.settings import CacheHints
from concertino.server.tool_errors import describe_exception, find_passthrough, shorten

if TYPE_CHECKING:
    from concertino.server.completion import Completable
    from concertino.server.prompts import Prompts
    from concertino.server.resources import Resources

__all__ = ["LazyFeatures", "Way"]

NOTHING: Mapping[str, Completable] = {}
Way = Callable[[Call, Context], Awaitable[Struct]]


class LazyFeatures:
    """ways: method -> who answers it. offer: grows with what is added; what was offered once stays so, for clients know of it."""

    def __init__(
        self,
        offer: ServerFeatures,
        in_thread: InThread,
        page_size: int,
        hints: CacheHints,
        log: logging.Logger,
    ) -> None:
        self.offer = offer
        self.ways: dict[str, Way] = {}
        self._resources: Resources | None = None
        self._prompts: Prompts | None = None
        self._in_thread = in_thread
        self._page_size = page_size
        self._hints = hints
        self._log = log
        self._opening = threading.RLock()

    @property
    def resources(self) -> Resources:
        with self._opening:
            if self._resources is None:
                from concertino.server.resources import Resources

                room = self._resources = Resources(self._in_thread, self._page_size, self._hints)
                self.ways["resources/list"] = room.list
                self.ways["resources/templates/list"] = room.list_templates
                self.ways["resources/read"] = room.read
            return self._resources

    @property
    def prompts(self) -> Prompts:
        with self._opening:
            if self._prompts is None:
                from concertino.server.prompts import Prompts

                room = self._prompts = Prompts(self._in_thread, self._page_size, self._hints)
                self.ways["prompts/list"] = room.list
                self.ways["prompts/get"] = room.get
            return self._prompts

    def offer_more(self) -> None:
        """ServerFeatures what has been added."""
        with self._opening:
            resources = self._resources is not None and bool(
                self._resources.resources.entries or self._resources.templates.entries
            )
            if resources and not self.offer.resources:
                self.offer = replace(self.offer, resources=True, subscriptions=True)
            if (
                self._prompts is not None
                and self._prompts.prompts.entries
                and not self.offer.prompts
            ):
                self.offer = replace(self.offer, prompts=True)
            rooms = (self._resources, self._prompts)
            if not self.offer.completions and any(
                room is not None and room.completes for room in rooms
            ):
                self.ways["completion/complete"] = self._complete
                self.offer = replace(self.offer, completions=True)

    def _completable(self) -> tuple[Mapping[str, Completable], Mapping[str, Completable]]:
        """Prompts and templates, by name."""
        return (
            NOTHING if self._prompts is None else self._prompts.prompts.entries,
            NOTHING if self._resources is None else self._resources.templates.entries,
        )

    async def _complete(self, call: Call, context: Context) -> Struct:
        from concertino.server.completion import complete

        return await complete(call, context, *self._completable(), self._in_thread)

    def add_completer(self, target: str, argument: str, handler: Handler) -> None:
        """See Server.complete."""
        from concertino.server.completion import completer

        what = f"completion of {argument!r} of {target!r}"
        made = completer(handler, what)
        if self._prompts is not None and target in self._prompts.prompts.entries:
            prompts = self._prompts.prompts
            _check(what, argument, prompts.entries[target].texts.schemas)
            prompts.change(
                target, lambda each: replace(each, completers={**each.completers, argument: made})
            )
            self._prompts.completes = True
        elif self._resources is not None and target in self._resources.templates.entries:
            templates = self._resources.templates
            _check(what, argument, templates.entries[target].texts.schemas)
            templates.change(
                target, lambda each: replace(each, completers={**each.completers, argument: made})
            )
            self._resources.completes = True
        else:
            raise RegistrationError(
                f"{what}: there is no prompt and no resource template of this name; register it first"
            )

    async def answer(self, call: Call, context: Context) -> Struct:
        """Answer a call. What goes wrong is an error answer."""
        way = self.ways.get(call.method)
        if way is None:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        try:
            return await way(call, context)
        except RpcError:
            raise
        except (ToolError, InvalidResult) as error:
            raise RpcError(INTERNAL_ERROR, str(error), getattr(error, "body", None)) from None
        except (
            BaseException
        ) as error:  # SystemExit, GeneratorExit and their like too: no handler ends the server
            if context.cancelled:
                raise
            if (passing := find_passthrough(error)) is not None:
                raise passing from None
            self._log.exception("%s failed: %s", call.method, _target(call))
            raise RpcError(INTERNAL_ERROR, f"Internal error: {describe_exception(error)}") from None


def _check(what: str, argument: str, arguments: Iterable[str]) -> None:
    if argument not in arguments:
        raise RegistrationError(
            f"{what}: expected one of its arguments ({', '.join(arguments) or 'it has none'})"
        )


def _target(call: Call) -> str:
    """What a call was about, for the log."""
    about = call.params.get("uri") or call.params.get("name") or Raw(b"")
    return shorten(str(bytes(about), "utf-8", "replace"))
