"""Context that outlives a call: small values under keys, in a context that has a handle.

    contexts = Contexts()
    contexts.add_tools(server)     # set_context and get_context, for clients
    await contexts.set(handle, "theme", "dark")   # or in tools of your own

The protocol keeps no state between calls since 2026-07-28; what a client wants to come back to it names itself, by a handle that
the server has minted (2026-07-28 "Explicit State Handles"). Whoever has the handle has the context: it cannot be guessed.
All of it is a SQLite database, in memory or in a file that several processes may share; it is asked in a thread of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta
from msgspec.json import decode, encode

from concertino.errors import ToolError
from concertino.runtime.threads import Threads
from concertino.server.server import Server
from concertino.server.settings import check_positive

if TYPE_CHECKING:
    from sqlite3 import Connection, Cursor

__all__ = ["Contexts"]

log = logging.getLogger("concertino.contexts")
T = TypeVar("T")
MAX_KEY = 256  # characters
MAX_HANDLE = 100  # characters of one that came
BUSY_S = 5.0  # how long to wait for another process that writes
SCHEMA = """
CREATE TABLE IF NOT EXISTS contexts (
    handle TEXT PRIMARY KEY, used REAL NOT NULL, bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS by_use ON contexts (used);
CREATE TABLE IF NOT EXISTS entries (
    handle TEXT NOT NULL REFERENCES contexts (handle) ON DELETE CASCADE, key TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (handle, key)
) WITHOUT ROWID;
"""


class Contexts:
    """A key-value store of contexts with handles.

    path: of a SQLite file, made if it is not there, readable by its owner alone; None: in memory. ttl_s: seconds after its last use
    that a context is forgotten. max_value_bytes: of one value as JSON. max_keys: of one context. max_contexts, max_bytes: of all
    together: beyond either the contexts that were not used for longest go. clock: seconds; for a file, which outlives the process,
    the wall's unless given.
    Every method raises ToolError, with the code CONTEXT_NOT_FOUND, KEY_NOT_FOUND, CONTEXT_FULL, VALUE_TOO_LARGE, INVALID_KEY or
    CONTEXT_UNAVAILABLE. Raises ValueError for what is not positive.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        ttl_s: float = 3600.0,
        max_value_bytes: int = 65536,
        max_keys: int = 100,
        max_contexts: int = 1000,
        max_bytes: int = 16 * 2**20,
        clock: Callable[[], float] | None = None,
    ) -> None:
        sizes = {
            "ttl_s": ttl_s,
            "max_value_bytes": max_value_bytes,
            "max_keys": max_keys,
            "max_contexts": max_contexts,
            "max_bytes": max_bytes,
        }
        check_positive("contexts", sizes)
        if path is not None and not isinstance(path, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"contexts: path: expected a path, got {path!r}")
        self._path = None if path is None else os.fspath(path)
        self._ttl_s = ttl_s
        self._max_value_bytes = max_value_bytes
        self._max_keys = max_keys
        self._max_contexts = max_contexts
        self._max_bytes = max_bytes
        self._clock = clock or (time.monotonic if path is None else time.time)
        self._thread: Threads | None = None
        self._database: Connection | None = None  # used in that thread alone

    async def set(self, context: str | None, key: str, value: Any) -> str:
        """Put a value under a key. context: its handle; None: a new one. value: any JSON. Returns the handle."""
        if not 0 < len(key) <= MAX_KEY:
            raise ToolError(
                "INVALID_KEY",
                f"key: expected 1 to {MAX_KEY} characters, got {len(key)}",
                suggestion="Use a short name, such as 'theme'",
            )
        written = encode(value)
        if len(written) > self._max_value_bytes:
            raise ToolError(
                "VALUE_TOO_LARGE",
                f"value: expected at most {self._max_value_bytes} bytes of JSON, got {len(written)}",
                suggestion="Keep a summary, or the name of a file, instead",
            )
        return await self._ask(partial(self._set, context, key, written))

    async def get(self, context: str, key: str) -> Any:
        """The value under a key."""
        found = await self.all(context)
        if key not in found:
            raise ToolError(
                "KEY_NOT_FOUND",
                f"There is nothing under {key[:MAX_KEY]!r} in this context",
                suggestion="Use one of the keys that there are, or set_context first",
                availableKeys=list(found),
            )
        return found[key]

    async def all(self, context: str) -> dict[str, Any]:
        """Every key of a context with its value, in the order of the keys."""
        return await self._ask(partial(self._all, context))

    async def delete(self, context: str) -> None:
        """Forget a context, with all that is in it. One that is not there is forgotten already."""
        await self._ask(partial(self._delete, context))

    async def close(self) -> None:
        """Let go of the database; what is in memory is gone. The next use opens it again."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.run(self._closed)
            thread.close()

    def add_tools(self, server: Server) -> None:
        """ServerFeatures `set_context` and `get_context` to the clients of a server, and close this with it.

        Handlers of the server that are registered later may take a parameter of the class Contexts.
        Raises RegistrationError once the server has started, and for a second one.
        """

        async def living() -> AsyncIterator[Contexts]:
            yield self
            await self.close()

        server.lifespan(living)
        server.add_tool(self._set_context, name="set_context", destructive=False, idempotent=False)
        server.add_tool(self._get_context, name="get_context", read_only=True)

    # The tools

    async def _set_context(
        self,
        key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY)],
        value: Any,
        context: str | None = None,
    ) -> dict[str, Any]:
        """Keep a value under a key for later calls. Returns the handle of the context that holds it.

        Args:
            key: a name for the value.
            value: any JSON; what was under this key is replaced.
            context: the handle that an earlier call gave; without one, a new context begins.
        """
        handle = await self.set(context, key, value)
        return {"success": True, "context": handle, "expiresAfterSeconds": self._ttl_s}

    async def _get_context(self, context: str, key: str | None = None) -> dict[str, Any]:
        """Get back what set_context has kept.

        Args:
            context: the handle that set_context gave.
            key: of the value that is wanted; without it, all of them.
        """
        values = await self.all(context) if key is None else {key: await self.get(context, key)}
        return {"context": context, "values": values}

    # In the thread

    async def _ask(self, what: Callable[[], T]) -> T:
        from sqlite3 import Error

        if self._thread is None:
            self._thread = Threads(1)
        try:
            return await self._thread.run(partial(self._transaction, what))
        except (Error, OSError) as why:
            log.exception("the store of contexts failed")
            said = (
                why.strerror if isinstance(why, OSError) else why
            )  # where the file is, is not the client's
            raise ToolError(
                "CONTEXT_UNAVAILABLE",
                f"The store of contexts cannot be used: {said}",
                suggestion="Try again later; the server's log says more",
            ) from None

    def _transaction(self, what: Callable[[], T]) -> T:
        database = self._database or self._opened()
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute("DELETE FROM contexts WHERE used <= ?", (self._clock() - self._ttl_s,))
            given = what()
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # a full disk may have ended it
                database.execute("ROLLBACK")
            raise
        return given

    def _opened(self) -> Connection:
        import sqlite3

        if self._path is not None:
            os.close(
                os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )  # its companions get the same mode
        database = sqlite3.connect(
            self._path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            if self._path is not None:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA foreign_keys = ON")
            database.executescript(SCHEMA)
        except BaseException:
            database.close()
            raise
        self._database = database
        return database

    def _closed(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _execute(self, statement: str, *values: Any) -> Cursor:
        assert self._database is not None
        return self._database.execute(statement, values)

    def _found(self, context: str) -> None:
        """That it is there; it is used now."""
        if not self._execute(
            "UPDATE contexts SET used = ? WHERE handle = ?", self._clock(), context
        ).rowcount:
            raise ToolError(
                "CONTEXT_NOT_FOUND",
                f"There is no context {context[:MAX_HANDLE]!r}",
                suggestion=f"Contexts are forgotten {self._ttl_s:g} seconds after their last use; begin a new one with set_context",
            )

    def _set(self, context: str | None, key: str, value: bytes) -> str:
        before: int | None = None
        if context is not None:
            self._found(context)
            [(keys, before)] = self._execute(
                "SELECT count(*), max(CASE WHEN key = ? THEN length(CAST(key AS BLOB)) + length(value) END)"
                " FROM entries WHERE handle = ?",
                key,
                context,
            )
            if before is None and keys >= self._max_keys:
                raise ToolError(
                    "CONTEXT_FULL",
                    f"The context has {keys} keys, and may have no more",
                    suggestion="Replace the value of a key, or begin a new context",
                )
        else:
            context = "ctx_" + os.urandom(16).hex()
            self._execute(
                "INSERT INTO contexts (handle, used) VALUES (?, ?)", context, self._clock()
            )
        self._execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", context, key, value)
        size = len(key.encode()) + len(value) - (before or 0)
        self._execute("UPDATE contexts SET bytes = bytes + ? WHERE handle = ?", size, context)
        self._make_room(context)
        return context

    def _make_room(self, context: str) -> None:
        """Forget those that were not used for longest, until the others fit; this one stays."""
        [(count, size)] = self._execute("SELECT count(*), sum(bytes) FROM contexts")
        while count > 1 and (count > self._max_contexts or size > self._max_bytes):
            [(oldest, freed)] = self._execute(
                "SELECT handle, bytes FROM contexts WHERE handle <> ? ORDER BY used, rowid LIMIT 1",
                context,
            )
            self._delete(oldest)
            count, size = count - 1, size - freed

    def _all(self, context: str) -> dict[str, Any]:
        self._found(context)
        rows = self._execute(
            "SELECT key, value FROM entries WHERE handle = ? ORDER BY key", context
        ).fetchall()
        return {key: decode(value) for key, value in rows}

    def _delete(self, context: str) -> None:
        self._execute("DELETE FROM contexts WHERE handle = ?", context)
