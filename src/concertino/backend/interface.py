"""The interfaces Backend, which handles MCP calls, and Context, which handlers use.

    class Echo(BackendWrapper):
        async def handle(self, call: Call, context: Context) -> Struct | Raw:
            context.log("info", f"call of {call.name}")
            return await self.inner.handle(call, context)

A `Server` of Python functions, a `Library` of Markdown files and a `Proxy` for another MCP server
are Backends. A guard, which limits or filters the calls of another Backend, is a Backend too. A
Notifier, which the Host passes to Backend.start(), notifies the Backend's clients of changes. Calls
and results have the form of MCP 2026-07-28. The session (protocol/session.py) translates results
for clients of other revisions.

Four interfaces below are optional. A Backend may implement SupportsClientNotifications. A Notifier
may implement SupportsEarlyOpening, SupportsHeldOpening and SupportsFirstMessage, for backends whose
start takes long. Optional interfaces that make calls faster are in backend/call_hooks.py and
backend/callback_calls.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Protocol,
    TypeVar,
    overload,
    runtime_checkable,
)

from msgspec import Raw, Struct

from concertino.protocol.call import Call, ClientFacts, InputRequired, ServerFeatures
from concertino.types.results import CallToolResult, Level

if TYPE_CHECKING:
    from concertino.backend.caller import Caller, CallerSession
    from concertino.protocol.principal import Principal
    from concertino.types.client_requests import (
        Accepted,
        ClientRequest,
        CreateMessageResult,
        Declined,
        Root,
        SamplingMessage,
    )

__all__ = [
    "DONE",
    "Backend",
    "Call",
    "ChangeKind",
    "ClientFacts",
    "Context",
    "InputRequired",
    "Notifier",
    "ServerFeatures",
    "SupportsClientNotifications",
    "SupportsEarlyOpening",
    "SupportsFirstMessage",
    "SupportsHeldOpening",
    "describe_non_backend",
    "opens_with_handshake",
]

T = TypeVar("T")
ContextT = TypeVar("ContextT")
ChangeKind = Literal["tools", "prompts", "resources", "features"]


class Notifier(Protocol):
    """The interface with which a backend notifies clients of changes.

    The Host (runtime/host.py), which connects a backend with its clients, passes an implementation
    to Backend.start(). The methods may be called from any thread.
    """

    def report_change(self, what: ChangeKind) -> None:
        """Notify the clients that a list has changed.

        what: the list: "tools", "prompts" or "resources". "features" means that the result of the
            backend's features() has changed. Then no notification is sent, because MCP has none,
            but the answers to later requests contain the new features.
        """
        ...

    def report_update(self, uri: str) -> None:
        """Notify the subscribers of a resource that its content has changed.

        uri: the URI of the resource.
        """
        ...


@runtime_checkable
class SupportsEarlyOpening(Protocol):
    """A Notifier that holds back the clients' first requests until the backend has started."""

    def open_early(self) -> None:
        """Answer requests such as `initialize` from now on. Calls still wait for the start.

        Without this method, requests such as `initialize` are answered when start() has returned,
        but after Limits.opening_s seconds at the latest. A backend whose start() takes long calls
        the method on the event loop, as soon as the start is unlikely to fail.
        """
        ...


@runtime_checkable
class SupportsClientNotifications(Protocol):
    """A Backend that gets the clients' notifications, such as that their roots have changed."""

    def on_client_notification(
        self,
        session: CallerSession,
        method: str,
        params: Mapping[str, Raw],
    ) -> None:
        """Handle a client's notification that concertino does not handle itself.

        Only clients of revisions before MCP 2026-07-28 send such notifications. `initialized` and
        `cancelled` never reach this method. It is called on the event loop, and must not block.
        session: the client's session. All calls of this client have the same object as
            `context.caller.session`.
        method: the method of the notification.
        params: the params of the notification: name -> undecoded value.
        """
        ...


@runtime_checkable
class SupportsHeldOpening(Protocol):
    """A Notifier that can refuse to open sessions while the backend is starting."""

    def hold_opening(self, within_s: float, describe: Callable[[], str]) -> None:
        """Let requests that open a session wait at most `within_s` seconds, then refuse them.

        A backend that does not know its features before it has started, such as a proxy, calls this
        method on the event loop. The method returns at once. If the backend has not started
        `within_s` seconds later, requests that open a session (`initialize`, `server/discover`) get
        an error: those that wait, and those that arrive before the start. Calls wait for the start
        without this limit.
        describe: returns the text of the error.
        """
        ...


@runtime_checkable
class SupportsFirstMessage(Protocol):
    """A Notifier that knows how the first client opens its session, before the backend has started.

    A proxy needs this to open the session with its server in the same way as the client has opened
    the session with the proxy: with the `initialize` request of the revisions before MCP
    2026-07-28, or without.
    """

    async def opens_with_handshake(self, within_s: float) -> bool:
        """Wait for the first client's first message, and return whether it is `initialize`.

        Returns False if no client is connected, or if the client sends nothing for within_s
        seconds.
        """
        ...


async def opens_with_handshake(outlet: Notifier, within_s: float) -> bool:
    """Wait for the first client's first message, and return whether it is `initialize`.

    outlet: the argument of the backend's start().
    Returns False if no client is connected, if the client sends nothing for within_s seconds, or if
    `outlet` does not implement SupportsFirstMessage.
    """
    if isinstance(outlet, SupportsFirstMessage):
        return await outlet.opens_with_handshake(within_s)
    return False


class Context(Protocol):
    """The interface between a handler and the client whose call it handles.

    A handler is the function of a tool, prompt, resource or completion. It gets the Context of the
    call in a parameter with the annotation Context:

        @server.tool
        async def index(folder: str, context: Context) -> int:
            context.progress(1, 10, "reading")
            return await count_files(folder)

    progress() and log() send at once, even if the handler does not await the returned awaitable.
    Awaiting it lets the handler wait for a slow client, until the client has read the messages that
    were sent before.
    """

    @property
    def client(self) -> ClientFacts:
        """Return the name, version, MCP revision and capabilities that the client has sent."""
        ...

    @property
    def principal(self) -> Principal | None:
        """Return the verified identity of the caller; None if the transport has not verified it.

        Over HTTP the identity comes from the bearer token. On a Unix socket it is the user of the
        client's process. Over stdin and stdout it is None, because the client has started this
        process.
        """
        ...

    @property
    def caller(self) -> Caller:
        """Return the facts about this call that a backend needs to forward it to another server.

        Examples are whether the client wants progress, and the connection on which the call has
        arrived.
        """
        ...

    @property
    def cancelled(self) -> bool:
        """Return whether the client has cancelled the call.

        An `async def` handler gets CancelledError as well.
        """
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return the fields of the request's `_meta` that the protocol does not define.

        An example is trace context (`traceparent`).
        """
        ...

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        """Report progress to the client.

        Nothing is sent if the client has not asked for progress, or if `done` is not larger than in
        the last report.
        done: how much is done, in any unit.
        total: how much there is to do, in the same unit; None if that is not known.
        message: a text for people; None for no text. Clients of revision 2024-11-05 do not get it.
        Returns an awaitable. Awaiting it waits until a slow client has read what was sent before.
        Raises TypeError if a number or the text has another type, and ValueError for a number that
        is not finite.
        """
        ...

    def log(
        self,
        level: Level,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        """Send a log message to the client, if it wants messages of this level.

        The message is not written to the server's own log.
        level: how severe the message is, such as "info".
        data: any JSON value, usually a string.
        logger: the name of the logger, for the client; None for no name.
        Returns an awaitable. Awaiting it waits until a slow client has read what was sent before.
        In a `def` handler the method itself waits while 10,000 messages of the call are not sent.
        Raises ValueError for an unknown level.
        """
        ...

    @overload
    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, CallToolResult]: ...
    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: type[T],
    ) -> Coroutine[Any, Any, T]: ...
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Any:
        """Call another tool of the same server, in this process.

        - The tool's arguments are validated, and the guards around the server, such as rate limits,
          apply.
        - The tool gets a Context with the same client and trace context.
        - If this call is cancelled, so is the tool.
        - Progress that the tool reports is not sent.

        In a `def` handler write `context.wait(context.call_tool(...))`.

        name: the name of the tool.
        arguments: the arguments of the tool; None for no arguments.
        into: the type to which the structured content of the result is converted. For a result
            without structured content, the text is parsed as JSON and converted. Without `into`,
            the CallToolResult is returned, even if the tool has failed.
        Raises RpcError for an unknown tool, and ToolError for more than 16 nested calls, or more
        than 10,000 calls inside one. With `into`, raises ToolError with the text of the result if
        the tool has failed, and ProtocolError if the result does not fit the type.
        """
        ...

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        """Ask the client several questions at once. Returns key -> the undecoded answer.

        elicit(), sample() and roots() are simpler: they ask one question, and decode the answer.

        - A client of a revision before MCP 2026-07-28 gets the questions as requests, and this
          method waits for the client's responses.
        - Since 2026-07-28 a client answers by repeating the call. Therefore this method first
          raises Suspended, which ends the handler. When the client has answered, the handler runs
          again from its start, and this method returns the answers. So all code before a question
          runs several times. Use once() for work that must be done only once.

        Only the handlers of tools, prompts and resources may ask. In one call, the client may be
        asked at most 16 times, each time any number of questions.
        questions: key -> an Elicitation, Sampling or ListRoots of concertino.types. The key is any
            string that no other question of the call has.

        Raises MissingCapability if the client cannot answer such a question, InvalidClientResponse
        for a malformed answer, RpcError when the client answers with an error and at the 17th time,
        TimedOut after ten minutes, and ValueError for a key that another question has.
        """
        ...

    @overload
    async def elicit(
        self,
        message: str,
        form: type[T],
        *,
        key: str | None = None,
    ) -> Accepted[T] | Declined: ...
    @overload
    async def elicit(
        self,
        message: str,
        form: Mapping[str, Any],
        *,
        key: str | None = None,
    ) -> Accepted[dict[str, Any]] | Declined: ...
    async def elicit(
        self,
        message: str,
        form: Any,
        *,
        key: str | None = None,
    ) -> Accepted[Any] | Declined:
        """Ask the user to fill in a form.

            answer = await context.elicit("Where to?", Address)
            if isinstance(answer, Accepted):
                await send_to(answer.content)

        Since MCP 2026-07-28, the handler ends with Suspended, and runs again from its start when
        the client has answered; ask() has the details.
        message: the question, for the user.
        form: a class whose fields are strings, numbers, bools or choices, or a JSON Schema.
        key: the name of the question in the call; by default `q1`, `q2` and so on.
        Returns Accepted if the user has filled in the form; its `content` is an object of the
        class, or a dict for a JSON Schema. Otherwise returns Declined.
        Raises MissingCapability, InvalidClientResponse, RpcError, TimedOut or ValueError as ask()
        does, and RegistrationError for a class that is not a form.
        """
        ...

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
    ) -> Literal["accept", "decline", "cancel"]:
        """Ask the user to open a web page, for example to enter a password there.

        Since MCP 2026-07-28, the handler ends with Suspended and runs again, as in elicit().
        message: the question, for the user.
        url: an https:// URL, or an http:// URL of localhost. It must not contain a user name, a
            password or another secret.
        key: the name of the question in the call; by default `q1`, `q2` and so on.
        Returns the user's answer. `accept` means only that the user has agreed to open the page,
        and not that the user has done anything on it.
        Raises MissingCapability, InvalidClientResponse, RpcError or TimedOut as ask() does. Raises
        ValueError for a URL with another scheme or host, or with a user name or password, and for a
        key that another question has.
        """
        ...

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage | str],
        max_tokens: int,
        *,
        key: str | None = None,
        **options: Any,
    ) -> CreateMessageResult:
        """Ask the client's model to continue a conversation.

        Since MCP 2026-07-28, the handler ends with Suspended and runs again, as in elicit().
        messages: the conversation. A str stands for a message of the user.
        max_tokens: the maximum length of the model's message, in tokens.
        key: the name of the question in the call; by default `q1`, `q2` and so on.
        options: the other fields of concertino.types.Sampling, such as system_prompt.
        Raises MissingCapability, InvalidClientResponse, RpcError or TimedOut as ask() does. Raises
        ValueError if a message that uses a tool is not followed by the tool's result, and for a key
        that another question has.
        """
        ...

    async def roots(self, *, key: str | None = None) -> list[Root]:
        """Return the client's roots: the directories and files that this server may use.

        Since MCP 2026-07-28, the handler ends with Suspended and runs again, as in elicit().
        key: the name of the question in the call; by default `q1`, `q2` and so on.
        Raises MissingCapability, InvalidClientResponse, RpcError, TimedOut or ValueError as ask()
        does.
        """
        ...

    @overload
    async def once(
        self,
        key: str,
        make: Callable[[], Awaitable[T]],
        kind: type[T],
    ) -> T: ...
    @overload
    async def once(self, key: str, make: Callable[[], object]) -> Any: ...
    async def once(
        self,
        key: str,
        make: Callable[[], object],
        kind: Any = Any,
    ) -> Any:
        """Return a value that is computed once per call, even if the handler runs several times.

            number = await context.once("number", place_order)

        Since MCP 2026-07-28, a handler that asks its client ends, and runs again from its start
        when the client has answered. The client stores the value in the meantime, as JSON. The
        client can read the value, but not change it.
        key: the name of the value within the call.
        make: returns the value, or an awaitable of the value, which must have a JSON form. It is
            called if the call has no value with this key yet.
        kind: the type to which the value is decoded from JSON. By default, the value is returned as
            JSON decodes: dicts, lists, strings, numbers, bools and None.
        Raises the exceptions of `make`, and TypeError or ValueError if the value has no JSON form.
        """
        ...

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait for an awaitable in a `def` handler, which runs in a thread, and return its result.

        An example is `context.wait(context.elicit(...))`.
        Raises the exception of the awaitable, CancelledError when the client cancels the call, and
        RuntimeError if it is called on the event loop.
        """
        ...


class _Done:
    """An awaitable that is done already: the result of progress() and log() without a wait.

    Unlike a coroutine object, it causes no warning if it is never awaited.
    """

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = _Done()


class Backend(Protocol):
    """The interface of everything that handles calls. One object serves many connections.

    To change some calls of an existing backend, derive a class from BackendWrapper, as the example
    at the top of this module does. To serve a backend over stdin and stdout, call run(backend).
    """

    async def start(self, outlet: Notifier) -> None:
        """Prepare for calls, which wait until this method returns.

        A Host connects a backend with its clients. Each Host that serves the backend calls this
        method once. If the method raises, the clients' requests get the exception as an error
        response.
        outlet: notifies the clients of this Host of changes. The backend may call its methods at
            any time until close().
        """
        ...

    def features(self) -> ServerFeatures:
        """Return the features that this backend offers now. Called often, so it must be fast.

        Before start() has returned, the result must contain all features that the backend may have
        later.
        """
        ...

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Handle one call and return its result.

        The result is a Struct of `concertino.types`, or JSON in the form of MCP 2026-07-28 as Raw.
        To ask the client first, return InputRequired. When the client has answered, `handle` is
        called again, with a Call that contains the `answers` and the `state`.
        Raises RpcError to send an error response. Any other exception is logged, and the client
        gets the error -32603. Do not catch CancelledError (the call is cancelled) and Suspended
        (the client will repeat the call).
        """
        ...

    async def watch(self, uris: frozenset[str]) -> None:
        """Watch resources, and report changes of their content with Notifier.report_update().

        If features() have `subscriptions`, the Host calls this method after start(), whenever
        clients have subscribed or unsubscribed. The next call follows when this one has ended.
        uris: all resources to which clients are subscribed now, not only new ones.
        """
        ...

    async def close(self) -> None:
        """Release what start() has acquired. Each Host calls this once, after its last call."""
        ...


def describe_non_backend(value: object) -> str | None:
    """Return a description for an error message if a value is not a Backend; None if it is one.

    The description is the name of the value's type, such as `int`; for a class, its name and
    advice.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}; give an object"
    for name in ("start", "features", "handle", "watch", "close"):
        if not callable(getattr(value, name, None)):
            return type(value).__name__
    return None


class ForeignName:
    """A descriptor for an attribute that Context has in another MCP library, but not in this one.

    Reading the attribute raises AttributeError with a hint, so hasattr() returns False. A method
    `__getattr__` could do the same, but would make all other attributes slower on Python 3.11.
    hint: the advice in the error message, such as "write context.roots()".
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"Context has no {self._name!r}: {self._hint}")


# Attributes of Context in FastMCP and the official SDK -> what to write here
# (docs/decisions/0017).
FOREIGN_NAMES = {
    "info": "write context.log('info', ...)",
    "debug": "write context.log('debug', ...)",
    "warning": "write context.log('warning', ...)",
    "error": "write context.log('error', ...)",
    "report_progress": "write context.progress(done, total, message)",
    "read_resource": "call the function that returns the resource's content",
    "list_roots": "write await context.roots()",
    "request_context": "annotate a parameter of the handler with the class of the object that your "
    "lifespan function yields; the parameter gets this object",
    "session": "write context.elicit(...), sample(...), roots() or ask(...) to ask the client",
}


def refuse_foreign_names(cls: type[ContextT]) -> type[ContextT]:
    """Add a ForeignName for each of FOREIGN_NAMES to a Context class, and return the class.

    Used as a decorator of the classes that implement Context.
    """
    for name, hint in FOREIGN_NAMES.items():
        foreign = ForeignName(hint)
        # Python calls this method itself only for attributes in the body of a class.
        foreign.__set_name__(cls, name)
        setattr(cls, name, foreign)
    return cls
