"""Runs a server as a process, from taking over stdin and stdout to the exit code.

The clients of sockets: runtime/socket_frontend.py.
The process ends as runtime/shutdown.py describes.
Exit codes: 0 the client is gone, or SIGTERM or SIGINT came; 1 the server failed, at start or later;
2 usage error (by the command line, or for an invalid CONCERTINO_ variable), unless a client was
told: then it is 1.
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
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.runtime.entry import LoopFactory
from concertino.runtime.host import Host, Wrap
from concertino.runtime.shutdown import ShutdownWatchdog, begin_shutdown_at_signals, exit_process
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.stdio import StdioConnection, StdioDescriptors, take_over

__all__ = ["Frontend", "StdioFrontend", "run"]

FAILED, USAGE = 1, 2
# How long log lines are held before they are offered to stderr again.
RETRY_S = 1.0


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

    frontend: by default stdin and stdout.
    trace: whether to write every message to stderr; by default as CONCERTINO_TRACE says.
    An invalid CONCERTINO_ variable ends the process with exit code 2. Raises RuntimeError inside a
    running event loop.
    """
    # The public asyncio.get_running_loop() raises where this returns None.
    running_loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    if running_loop is not None:
        raise RuntimeError(
            "run() cannot be called while an event loop runs, since it runs one itself: call it "
            "outside of asyncio.run(...), or await concertino.serve(server, connection)"
        )
    frontend = frontend or StdioFrontend(take_over())

    # Modules imported since the start may have put secrets into os.environ.
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
        exit_process(FAILED if frontend.refuse(str(exc)) else USAGE, frontend.writer)

    log.info("Starting %s MCP server v%s", info.name, info.version)
    code = FAILED
    watchdog: ShutdownWatchdog | None = None
    try:
        # Imported modules stay for good, so the collector need not look at them again. Many calls
        # that wait make it run often: with CPython's own threshold it took 25 % of the time of
        # 1,000 sleeping calls, with this one 5 %.
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)

        loop = (loop_factory or asyncio.new_event_loop)()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(partial(_log_loop_error, log))

        reading = frontend.prepare(limits, log)
        watchdog = ShutdownWatchdog(
            loop, reading, limits.drain_s, log, frontend.writer, frontend.release
        )
        wrap = _tracing_wrap(log, frontend.writer, format, trace)
        serving = _serve(backend, info.name, frontend, wrap, limits, log, watchdog)
        code = _run_to_completion(loop, serving, watchdog, log)
    # Also SystemExit, of the backend's start() or of a task of the application.
    except BaseException as exc:
        _log_failure(log, exc, serving=watchdog is not None and watchdog.serving)
        if watchdog is None:
            frontend.refuse(exc)
    exit_process(code, frontend.writer)


class Frontend(Protocol):
    """Where the clients of a process come from: stdio or listening sockets.

    writer: writes to stderr without blocking.
    """

    writer: BoundedWriter

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        """Get ready, before the event loop runs.

        Returns the descriptor whose end of input ends the process; -1 if there is none.
        """
        ...

    def open(
        self,
        host: Host,
        wrap: Wrap,
        watchdog: ShutdownWatchdog,
    ) -> asyncio.Future[None]:
        """Start to accept clients. Called on the event loop.

        Returns a future that is done once no client is left and none can come.
        """
        ...

    def stop(self) -> None:
        """Accept no more clients, and see that the future of open() gets done."""
        ...

    def refuse(self, failure: BaseException | str) -> bool:
        """Tell clients why they will not be served, when that is known before open().

        failure: see start_failure_text(). Blocks for a limited time. Returns whether one was told.
        """
        ...

    def exit_code(self) -> int:
        """Return the exit code of a process that has served until its last client was gone."""
        ...

    def release(self) -> None:
        """Remove what outlives the process, which ends now by os._exit.

        Called from any thread or signal handler.
        """
        ...


class StdioFrontend:
    """One client, on stdin and stdout. The process ends with it."""

    def __init__(self, descriptors: StdioDescriptors) -> None:
        self.writer = descriptors.writer
        self._descriptors = descriptors

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        # On a terminal somebody has started the server by hand: tell them why nothing happens.
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
        return self._stdio.reading

    def open(
        self,
        host: Host,
        wrap: Wrap,
        watchdog: ShutdownWatchdog,
    ) -> asyncio.Future[None]:
        self._stdio.ending = watchdog
        self._host = host
        return host.attach(wrap(self._stdio, "")).closed

    def stop(self) -> None:
        self._host.drain()

    def refuse(self, failure: BaseException | str) -> bool:
        from concertino.runtime.refusal import refuse_requests

        return refuse_requests(self._descriptors.reading, self._descriptors.writing, failure)

    def exit_code(self) -> int:
        return FAILED if self._stdio.has_failed else 0

    def release(self) -> None:
        pass


def _run_to_completion(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, int],
    watchdog: ShutdownWatchdog,
    log: logging.Logger,
) -> int:
    """Run `work` to its end and return its result, or raise its exception.

    If a handler stops the loop, or a task of the application exits, the loop is started again.
    """
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
            elif watchdog.serving:
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
    """Serve until the frontend's last client is gone, or the start fails. Returns the exit code."""
    loop = asyncio.get_running_loop()
    messages = _LifecycleLog(name, log, watchdog)
    async with Host(backend, limits, messages.on_started) as host:
        # Before open(), which announces that clients may come: from then on a signal may come, too.
        # Its effect on the frontend waits for the loop, hence until open() has returned.
        def stop() -> None:
            messages.on_shutdown(host.calls_under_way)
            frontend.stop()

        begin_shutdown_at_signals(loop, stop, frontend.release, watchdog)
        closed = frontend.open(host, wrap, watchdog)

        await asyncio.wait((host.started, closed), return_when=asyncio.FIRST_COMPLETED)
        if not watchdog.wanted:
            # The input may have ended before the start has. Wait for the start as long as calls
            # could have been drained, since a failure of it should be logged.
            elapsed = 0.0 if watchdog.began is None else time.monotonic() - watchdog.began
            await asyncio.wait((host.started,), timeout=max(0.0, limits.drain_s - elapsed))

        if host.started.done() and host.start_failure is not None:
            _log_failure(log, host.start_failure)
            watchdog.code = FAILED
            # Each client gets the reason as the answer to its first request.
            await host.closed()
            watchdog()
            frontend.stop()
            await closed
            return FAILED

        frontend.writer.on_held = _LogRetry(loop, frontend.writer)
        frontend.writer.on_held()
        await closed
        watchdog()
        messages.on_shutdown()
    return frontend.exit_code()


class _LifecycleLog:
    """The log messages about the end of the start, and the beginning of the shutdown."""

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
        self._watchdog.serving = True
        if not self._is_shutting_down:
            self._log.info("%s MCP server started successfully", self._name)

    def on_shutdown(self, calls: int = 0) -> None:
        """Log, once, that the shutdown begins. calls: how many it waits for."""
        if self._is_shutting_down:
            return
        self._is_shutting_down = True
        # Scripts look for the first part, which is all of it when nothing is waited for.
        text = f"Shutting down {self._name} MCP server"
        if calls:
            text += f", waiting for {calls} call{'s' * (calls > 1)}"
        self._log.info("%s", text)


def _tracing_wrap(
    log: logging.Logger,
    writer: BoundedWriter,
    format: str,
    trace: bool | None,
) -> Wrap:
    """Return the function that puts a trace around connections, if messages are to be shown.

    With LOG_LEVEL=debug messages are log lines, cut to SHOWN characters. A trace shows them whole,
    and the rate limit of the log does not apply to it.
    """
    is_traced = os.environ.get("CONCERTINO_TRACE", "") not in ("", "0") if trace is None else trace
    is_debug = log.isEnabledFor(logging.DEBUG)
    if not is_traced and not is_debug:
        return lambda connection, name: connection

    from concertino.runtime.message_log import make_message_log

    return make_message_log(log, writer, format, is_traced, is_debug)


def _log_failure(log: logging.Logger, exc: BaseException, serving: bool = False) -> None:
    """Log why the server failed: with a traceback after its start or at LOG_LEVEL=debug."""
    log.error(
        "%s: %s",
        "The server failed" if serving else "Failed to start server",
        _describe(exc),
        exc_info=exc if serving or log.isEnabledFor(logging.DEBUG) else None,
    )


def _log_loop_error(
    log: logging.Logger, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Log what the event loop reports: mostly the exception of a task that nobody awaited."""
    exc = context.get("exception")
    # SystemExit and KeyboardInterrupt leave the loop, and are logged there.
    if not isinstance(exc, (SystemExit, KeyboardInterrupt)):
        log.error("%s", context.get("message"), exc_info=exc)


class _LogRetry:
    """Writes log lines that stderr could not take, after a second, instead of with the next line.

    Call it when output is held, from any thread or signal handler. There is no timer otherwise, so
    that an idle process is not woken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: BoundedWriter) -> None:
        self._loop = loop
        self._writer = writer
        self._is_due = False

    def __call__(self) -> None:
        if not self._is_due and self._writer.pending:
            self._is_due = True
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, RETRY_S, self._retry)
            except RuntimeError:
                # The loop is closed: exit_process() writes what is left.
                pass

    def _retry(self) -> None:
        self._is_due = False
        self._writer.flush()
        self()


def _describe(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
