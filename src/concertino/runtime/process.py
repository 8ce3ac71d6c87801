"""Runs a server as a process, from taking over stdin and stdout to the exit code.

Server.run() and `concertino serve` call run() of this module. It configures logging, runs the event
loop, and serves the clients of a Frontend: StdioFrontend has one client on stdin and stdout, and
SocketFrontend (runtime/socket_frontend.py) accepts clients at sockets. runtime/shutdown.py ends the
process.

Exit codes:
0  the client has disconnected, or SIGTERM or SIGINT was received
1  the server failed, during its start or later
2  a CONCERTINO_ variable is invalid, and no client got this as an error response (otherwise 1)
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, NoReturn, Protocol

from concertino.backend.interface import Backend
from concertino.errors import ConcertinoError
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.entry import LoopFactory, begin_program
from concertino.runtime.host import Host, Wrap, unwrapped
from concertino.runtime.shutdown import ShutdownWatchdog, begin_shutdown_at_signals, exit_process
from concertino.runtime.tasks import hide_from_all_tasks, subject_of
from concertino.transports.stdio import StdioConnection, StdioDescriptors, take_over

__all__ = ["Frontend", "StdioFrontend", "run"]

FAILED, USAGE = 1, 2
# How many seconds pass before log lines that stderr has not accepted are written again.
RETRY_S = 1.0
# Why the start has failed, for clients, if the process ends before a blocked loop runs again.
BLOCKED_START = "the server is shutting down, and its start blocks the event loop"


def run(
    backend: Backend,
    frontend: Frontend | None = None,
    *,
    limits: Limits | None = None,
    log_format: str | None = None,
    trace: bool | None = None,
    loop_factory: LoopFactory | None = None,
) -> NoReturn:
    """Serve a backend to the clients of a frontend, then end the process.

    The process ends when the client on stdin disconnects, or after SIGTERM or SIGINT.

    frontend: the source of the clients; None for one client on stdin and stdout.
    limits: by default the limits that CONCERTINO_ variables set. An invalid variable ends the
        process.
    log_format: "line", "json" or "trace" (logs/formats.py); by default the value of
        CONCERTINO_LOG_FORMAT.
    trace: whether to write every JSON-RPC message to stderr; by default the value of
        CONCERTINO_TRACE.
    loop_factory: makes the event loop; by default asyncio.new_event_loop.
    Raises RuntimeError if it is called while an event loop runs.
    """
    # Returns None if no loop runs, where the public asyncio.get_running_loop() raises.
    running_loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    if running_loop is not None:
        raise RuntimeError(
            "run() cannot be called while an event loop runs, since it runs one itself: call it "
            "outside of asyncio.run(...), or await concertino.serve(server, connection)"
        )
    frontend = frontend or StdioFrontend(take_over())
    begin_program()

    # Look for secrets in os.environ again: modules such as dotenv may have added some.
    refresh()
    try:
        info = backend.features().info
    except BaseException as exc:
        logging_setup.configure(format=log_format, writer=frontend.writer)
        _log_failure(logging.getLogger("concertino"), exc)
        frontend.refuse(exc)
        exit_process(FAILED, frontend.writer)

    format = logging_setup.configure(
        format=log_format, component=info.name, writer=frontend.writer
    ).format_name
    if format == "json":
        from concertino.runtime.log_context import LogContextBackend

        backend = LogContextBackend(backend)
    log = logging.getLogger(f"concertino.{info.name}")
    try:
        limits = limits or Limits.from_environment(os.environ)
    except ValueError as exc:
        log.error("%s", exc)
        has_answered = frontend.refuse(str(exc))
        exit_process(FAILED if has_answered else USAGE, frontend.writer)

    # The version is empty if the backend is a proxy that has not connected to its server yet.
    version = f" v{info.version}" if info.version else ""
    log.info("Starting %s MCP server%s", info.name, version)
    code = FAILED
    watchdog: ShutdownWatchdog | None = None
    try:
        _tune_garbage_collector()
        loop = (loop_factory or asyncio.new_event_loop)()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(partial(_log_loop_error, log))

        reading = frontend.prepare(limits, log)
        watchdog = ShutdownWatchdog(
            loop,
            reading,
            limits.drain_s,
            log=log,
            writer=frontend.writer,
            release=frontend.release,
        )
        wrap = _make_tracing_wrap(log, frontend.writer, format, trace)
        work = _serve(backend, info.name, frontend, wrap, limits, log, watchdog)
        code = _run_to_completion(loop, work, watchdog, log)
    # SystemExit too: the backend's start() or a task of the application may raise it.
    except BaseException as exc:
        _log_failure(log, exc, has_started=watchdog is not None and watchdog.is_serving)
        if watchdog is None:
            frontend.refuse(exc)
    exit_process(code, frontend.writer)


class Frontend(Protocol):
    """The source of a server's clients: stdio, or listening sockets.

    run() calls prepare(), then open(), then stop() after a signal, and exit_code() at the end. If
    the server cannot start, run() calls refuse() instead of open().
    writer: writes log lines to stderr without blocking.
    """

    writer: BoundedWriter

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        """Prepare to serve. Called before the event loop runs.

        Returns the file descriptor of the input at whose end the process ends; -1 if there is none.
        """
        ...

    def open(
        self,
        host: Host,
        wrap: Wrap,
        watchdog: ShutdownWatchdog,
    ) -> asyncio.Future[None]:
        """Start to serve clients. Called on the event loop.

        host: serves the connections; the frontend passes each of them to host.attach().
        wrap: wraps each connection before it is attached, for example to trace its messages.
        watchdog: limits the time of the shutdown. The frontend must call its begin_shutdown() when
            the input has ended.
        Returns a future that is done when no client is connected and none can connect any more.
        """
        ...

    def stop(self) -> None:
        """Stop serving after a signal: accept no more clients, and let calls that run finish.

        The future of open() is done afterwards, at once or when the last call has ended.
        """
        ...

    def refuse(self, failure: BaseException | str) -> bool:
        """Answer the clients' first requests with the reason why the server cannot start.

        Called instead of open(). If the start blocks the event loop, called in a thread after
        open(). Blocks for a few seconds at most.
        failure: the reason: an exception, or a text that describes it.
        Returns whether any client got an answer.
        """
        ...

    def exit_code(self) -> int:
        """Return the exit code of the process. Called when no client is connected any more."""
        ...

    def release(self) -> None:
        """Remove the files, such as Unix sockets, that would remain after the process.

        Called just before os._exit, in any thread or in a signal handler.
        """
        ...


class StdioFrontend:
    """Serves one client, on stdin and stdout. The process ends when this client disconnects."""

    def __init__(self, descriptors: StdioDescriptors) -> None:
        self.writer = descriptors.writer
        self._descriptors = descriptors
        self._reading, self._writing = descriptors.reading, descriptors.writing

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        # If stdin is a terminal, a person has started the server. Explain why nothing happens.
        if os.isatty(self._descriptors.reading):
            from concertino.runtime.own_command import own_command

            name = log.name.partition(".")[2]
            log.info(
                "%s waits for JSON-RPC messages on stdin, one per line; "
                "it is meant to be started by an MCP client (Ctrl-D ends it). "
                "To try its tools: concertino tools -- %s",
                name,
                own_command(),
            )
        self._stdio = StdioConnection(self._descriptors, limits)
        # The connection may have closed these descriptors, and reopened the same pipes.
        self._reading, self._writing = self._stdio.reading, self._stdio.writing
        return self._reading

    def open(
        self,
        host: Host,
        wrap: Wrap,
        watchdog: ShutdownWatchdog,
    ) -> asyncio.Future[None]:
        self._stdio.on_input_end = watchdog.begin_shutdown
        self._host = host
        return host.attach(wrap(self._stdio, "")).closed

    def stop(self) -> None:
        self._host.drain()

    def refuse(self, failure: BaseException | str) -> bool:
        from concertino.runtime.refusal import refuse_requests

        return refuse_requests(self._reading, self._writing, failure)

    def exit_code(self) -> int:
        return FAILED if self._stdio.has_failed else 0

    def release(self) -> None:
        pass


def _tune_garbage_collector() -> None:
    """Make the garbage collector take less of the process's time."""
    # Imported modules live until the end, so exclude their objects.
    gc.freeze()
    # The collector runs each time a certain number of objects were created, such as calls that
    # wait. With CPython's own thresholds it took 25 % of the time of 1,000 sleeping calls; with
    # these it takes 5 %.
    gc.set_threshold(10_000, 20, 20)


def _run_to_completion(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, int],
    watchdog: ShutdownWatchdog,
    log: logging.Logger,
) -> int:
    """Run `work` to its end and return its result, or raise its exception.

    If a handler stops the loop, or a task of the application raises SystemExit, this function
    starts the loop again.
    """
    # A handler that cancels all tasks must not cancel this task.
    task = hide_from_all_tasks(loop.create_task(work))
    while True:
        try:
            return loop.run_until_complete(task)
        except (RuntimeError, SystemExit, KeyboardInterrupt) as exc:
            if task.done() or loop.is_closed():
                raise
            if isinstance(exc, RuntimeError):
                log.warning("a handler stopped the event loop; the server continues")
            # asyncio lets SystemExit and KeyboardInterrupt of any task out of the loop. If start()
            # raised it, _serve logs it as the failure of the start.
            elif watchdog.is_serving:
                log.error(
                    "a task raised %s; the server continues", type(exc).__name__, exc_info=exc
                )


async def _serve(
    backend: Backend,
    name: str,
    frontend: Frontend,
    wrap: Wrap,
    limits: Limits,
    log: logging.Logger,
    watchdog: ShutdownWatchdog,
) -> int:
    """Serve until the frontend's last client has disconnected, or until the start has failed.

    name: the server's name, for the log.
    frontend: connects clients to the backend.
    wrap: wraps each connection, for example to trace its messages.
    watchdog: ends the process if its shutdown takes too long.
    Returns the exit code of the process.
    """
    loop = asyncio.get_running_loop()
    lifecycle_log = _LifecycleLog(name, log, watchdog)
    async with Host(backend, limits, lifecycle_log.on_started) as host:
        # open() logs that clients may connect, and a program that reads this line may send SIGTERM
        # at once. Therefore handle signals before. stop() runs on the loop, after open() has
        # returned.
        def log_shutdown() -> None:
            lifecycle_log.on_shutdown(host.calls_under_way + len(_find_uncounted_call(loop)))

        def stop() -> None:
            log_shutdown()
            frontend.stop()

        def answer_clients() -> None:
            """Answer the clients in a thread, because a handler or the start blocks the loop.

            If the backend has started, their calls get an error; otherwise all their requests do.
            """
            connections = list(host.connections)
            if host.started.done():
                # With several connections it is not known to which of them this call belongs.
                blocking = _find_uncounted_call(loop) if len(connections) == 1 else ()
                for connection in connections:
                    connection.cut_off(*blocking)
                return
            for connection in connections:
                connection.ready(ConcertinoError(BLOCKED_START))
            # Nothing has read the requests that are still in the pipe.
            frontend.refuse(BLOCKED_START)

        watchdog.on_blocked = log_shutdown
        watchdog.on_timeout = answer_clients
        begin_shutdown_at_signals(loop, stop, frontend.release, watchdog)
        closed = frontend.open(host, wrap, watchdog)

        await asyncio.wait((host.started, closed), return_when=asyncio.FIRST_COMPLETED)
        # After a signal the process ends without waiting for the start.
        if not watchdog.has_signal:
            # If `closed` is done, the input has ended while the backend is still starting. Wait as
            # long as calls would be drained, because a failure of the start must be logged.
            shutdown_s = 0.0 if watchdog.began is None else time.monotonic() - watchdog.began
            await asyncio.wait((host.started,), timeout=max(0.0, limits.drain_s - shutdown_s))

        if host.started.done() and host.start_failure is not None:
            _log_failure(log, host.start_failure)
            watchdog.code = FAILED
            # Wait until each client has got the reason, as the response to its first request.
            await host.closed()
            watchdog.begin_shutdown()
            frontend.stop()
            await closed
            return FAILED

        # The writer may hold log lines already, so call this once now.
        frontend.writer.on_held = _LogRetry(loop, frontend.writer)
        frontend.writer.on_held()
        await closed
        # Closing the backend below is a part of the shutdown, whose time is limited.
        watchdog.begin_shutdown()
        lifecycle_log.on_shutdown()
    return frontend.exit_code()


def _find_uncounted_call(loop: asyncio.AbstractEventLoop) -> tuple[SessionRequest, ...]:
    """Return the call that has blocked the event loop since it began; () if there is none.

    Such a call is not in the table of calls yet. May be called in any thread.
    """
    task = asyncio.current_task(loop)
    request = None if task is None else subject_of(task)
    return (request,) if isinstance(request, SessionRequest) and request.table is None else ()


class _LifecycleLog:
    """Logs the start of the backend and the beginning of the shutdown, each of them once.

    It also sets the watchdog's attribute `is_serving` when the backend has started.
    """

    def __init__(
        self,
        name: str,
        log: logging.Logger,
        watchdog: ShutdownWatchdog,
    ) -> None:
        self._name = name
        self._log = log
        self._watchdog = watchdog
        self._is_shutting_down = False

    def on_started(self) -> None:
        """Log that the backend has started, before the first request is answered."""
        self._watchdog.is_serving = True
        if not self._is_shutting_down:
            self._log.info("%s MCP server started successfully", self._name)

    def on_shutdown(self, calls: int = 0) -> None:
        """Log that the shutdown begins; later calls do nothing.

        calls: the number of running calls for which the shutdown waits.
        """
        if self._is_shutting_down:
            return
        self._is_shutting_down = True
        # Scripts search the log for this text, so it must not change.
        text = f"Shutting down {self._name} MCP server"
        if calls:
            noun = "call" if calls == 1 else "calls"
            text += f", waiting for {calls} {noun}"
        self._log.info("%s", text)


def _make_tracing_wrap(
    log: logging.Logger,
    writer: BoundedWriter,
    format: str,
    trace: bool | None,
) -> Wrap:
    """Return a function that wraps connections so that their messages are shown on stderr.

    With CONCERTINO_TRACE=1 or trace=True, each message is written in full. With LOG_LEVEL=debug,
    each message becomes a log line, which is shortened and subject to the log's rate limit. With
    neither, the returned function does not wrap connections.
    """
    if trace is None:
        trace = os.environ.get("CONCERTINO_TRACE", "") not in ("", "0")
    is_debug = log.isEnabledFor(logging.DEBUG)
    if not trace and not is_debug:
        return unwrapped

    from concertino.runtime.message_log import make_message_log

    return make_message_log(log, writer, format, is_traced=trace, is_debug=is_debug)


def _log_failure(log: logging.Logger, exc: BaseException, has_started: bool = False) -> None:
    """Log why the server failed.

    has_started: whether the server had started. If it had, or with LOG_LEVEL=debug, the traceback
        is logged too.
    """
    event = "The server failed" if has_started else "Failed to start server"
    has_traceback = has_started or log.isEnabledFor(logging.DEBUG)
    log.error("%s: %s", event, _describe(exc), exc_info=exc if has_traceback else None)


def _log_loop_error(
    log: logging.Logger, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Log an error that asyncio reports, such as the exception of a task that was never awaited.

    This is the exception handler of the loop (loop.set_exception_handler).
    context: asyncio's description of the error, with "message" and perhaps "exception".
    """
    exc = context.get("exception")
    # asyncio also raises these two out of the loop, and _run_to_completion() logs them.
    if not isinstance(exc, (SystemExit, KeyboardInterrupt)):
        log.error("%s", context.get("message"), exc_info=exc)


class _LogRetry:
    """Writes log lines again that stderr did not accept because its pipe was full.

    The writer calls this object when it holds such lines, in any thread or signal handler. A timer
    then tries to write the lines every RETRY_S seconds, until none is left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: BoundedWriter) -> None:
        self._loop = loop
        self._writer = writer
        # Whether a timer will call _retry().
        self._is_due = False

    def __call__(self) -> None:
        if not self._is_due and self._writer.pending:
            self._is_due = True
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, RETRY_S, self._retry)
            except RuntimeError:
                # The loop is closed: exit_process() writes the remaining lines.
                pass

    def _retry(self) -> None:
        self._is_due = False
        self._writer.flush()
        self()


def _describe(exc: BaseException) -> str:
    """Return the text of an exception for the log, with the name of its class if that helps."""
    # Imported here, because a start that succeeds does not need it.
    from concertino.excerpts import exception_text

    text = exception_text(exc)
    # Errors of concertino are written for people, so the name of the class would add nothing.
    if isinstance(exc, ConcertinoError) and text:
        return text
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
