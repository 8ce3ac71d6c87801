"""Contexts: stores small values between calls.

    contexts = Contexts()
    contexts.add_tools(server)     # adds the tools set_context and get_context
    handle = await contexts.set(None, "theme", "dark")   # or use it in tools of your own
    theme = await contexts.get(handle, "theme")

Since MCP 2026-07-28 the protocol has no sessions. A client refers to earlier state with a handle
that the server has issued (2026-07-28 "Explicit State Handles"). Here, a handle names a context: a
small key-value store. Any client that knows a handle can read and change its context, so handles
are random and cannot be guessed.

All contexts are in one SQLite database, in memory or in a file that several processes may share. A
thread runs the queries.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta
from msgspec.json import decode

from concertino.errors import ToolError
from concertino.runtime.threads import Threads
from concertino.schema.json_values import encode_finite
from concertino.server.server import Server
from concertino.server.settings import check_positive

if TYPE_CHECKING:
    from sqlite3 import Connection, Cursor

__all__ = ["Contexts"]

log = logging.getLogger("concertino.contexts")
T = TypeVar("T")
# The longest key, in characters.
MAX_KEY = 256
# An error quotes at most this many characters of an unknown handle.
MAX_HANDLE = 100
# How many seconds to wait while another process writes to the database.
BUSY_S = 5.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS contexts (
    handle TEXT PRIMARY KEY, used REAL NOT NULL, bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS by_use ON contexts (used);
CREATE TABLE IF NOT EXISTS entries (
    handle TEXT NOT NULL REFERENCES contexts (handle) ON DELETE CASCADE,
    key TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (handle, key)
) WITHOUT ROWID;
"""


class Contexts:
    """Many small key-value stores ("contexts"), with which tools store values between calls.

        contexts = Contexts()
        handle = await contexts.set(None, "theme", "dark")
        theme = await contexts.get(handle, "theme")

    A handle is a random string that names a context. A tool gives the handle to the client, which
    passes it to later calls. The contexts have nothing to do with the class Context.

    path: an SQLite file, which is created if it does not exist, and which only its owner may read.
        None to store everything in memory.
    ttl_s: how many seconds after its last use a context is dropped.
    max_value_bytes: the largest size of one value as JSON.
    max_keys: the largest number of keys in one context.
    max_contexts: the largest number of contexts.
    max_bytes: the largest size of all contexts together. When this or max_contexts is exceeded, the
        least recently used contexts are dropped.
    clock: returns the time in seconds. By default a monotonic clock; for a file, the time since the
        epoch, because the file outlives the process.

    The methods raise ToolError with one of these codes:

    - CONTEXT_NOT_FOUND, KEY_NOT_FOUND: there is no such context, or no such key in it.
    - CONTEXT_FULL: the context has max_keys keys.
    - INVALID_KEY, INVALID_VALUE, VALUE_TOO_LARGE: set() cannot store this key or value.
    - CONTEXT_UNAVAILABLE: the database has failed.

    The constructor raises ValueError for a number that is not positive.
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
        settings = {
            "ttl_s": ttl_s,
            "max_value_bytes": max_value_bytes,
            "max_keys": max_keys,
            "max_contexts": max_contexts,
            "max_bytes": max_bytes,
        }
        check_positive("contexts", settings)
        # Any, because a caller without a type checker may pass another type.
        any_path: Any = path
        if path is not None and not isinstance(any_path, (str, os.PathLike)):
            raise TypeError(f"contexts: path: expected a path, got {path!r}")
        self._path = None if path is None else os.fspath(path)
        self._ttl_s = ttl_s
        self._max_value_bytes = max_value_bytes
        self._max_keys = max_keys
        self._max_contexts = max_contexts
        self._max_bytes = max_bytes
        self._clock = clock or (time.monotonic if path is None else time.time)
        self._thread: Threads | None = None
        # Only the database thread uses the connection.
        self._database: Connection | None = None

    async def set(
        self,
        context: str | None,
        key: str,
        value: Any,
    ) -> str:
        """Store a value in a context, and return the handle of the context.

        context: the handle of an existing context; None to create one.
        key: the name of the value, 1 to 256 characters. An earlier value with this key is replaced.
        value: anything that can be encoded as JSON, so neither NaN nor infinity.
        Raises ToolError if there is no such context, or if it cannot store this key or value.
        """
        if not 0 < len(key) <= MAX_KEY:
            raise ToolError(
                "INVALID_KEY",
                f"key: expected 1 to {MAX_KEY} characters, got {len(key)}",
                suggestion="Use a short name, such as 'theme'",
            )
        try:
            written = encode_finite(value, "value")
        except ValueError as exc:
            raise ToolError(
                "INVALID_VALUE", str(exc), suggestion="Store null or a text instead"
            ) from None
        if len(written) > self._max_value_bytes:
            raise ToolError(
                "VALUE_TOO_LARGE",
                f"value: expected at most {self._max_value_bytes} bytes of JSON, "
                f"got {len(written)}",
                suggestion="Keep a summary, or the name of a file, instead",
            )
        return await self._run_query(partial(self._set, context, key, written))

    async def get(self, context: str, key: str) -> Any:
        """Return the value that is stored in a context under a key.

        context: the handle of the context.
        key: the name of the value.
        Raises ToolError with the code CONTEXT_NOT_FOUND or KEY_NOT_FOUND if there is no value.
        """
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
        """Return all keys of a context with their values, sorted by key.

        context: the handle of the context.
        Raises ToolError with the code CONTEXT_NOT_FOUND if there is no such context.
        """
        return await self._run_query(partial(self._all, context))

    async def delete(self, context: str) -> None:
        """Delete a context with its values. Does nothing if there is no such context.

        context: the handle of the context.
        """
        await self._run_query(partial(self._delete, context))

    async def close(self) -> None:
        """Close the database. Values in memory are lost. The next use opens the database again."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.run(self._close_database)
            thread.close()

    def add_tools(self, server: Server) -> None:
        """Add the tools `set_context` and `get_context` to a server.

        Tools, prompts and resources that are registered later get this object in a parameter with
        the annotation Contexts. The database is closed when the server ends.
        Raises RegistrationError if the server has started, or if this or another Contexts has added
        these tools already.
        """

        async def lifespan() -> AsyncIterator[Contexts]:
            yield self
            await self.close()

        server.lifespan(lifespan)
        server.add_tool(self._set_context, name="set_context", destructive=False, idempotent=False)
        server.add_tool(self._get_context, name="get_context", read_only=True)

    # The tools

    async def _set_context(
        self,
        key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY)],
        value: Any,
        context: str | None = None,
    ) -> dict[str, Any]:
        """Keep a value for later calls. Returns the handle of the context that holds it.

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
            key: the name of one value; without it, all values are returned.
        """
        values = await self.all(context) if key is None else {key: await self.get(context, key)}
        return {"context": context, "values": values}

    # Queries. _run_query() runs on the event loop; all methods after it run in the database thread.

    async def _run_query(self, query: Callable[[], T]) -> T:
        """Run a query in the database thread and return its result.

        Raises ToolError CONTEXT_UNAVAILABLE if the database fails.
        """
        from sqlite3 import Error

        if self._thread is None:
            self._thread = Threads(1)
        try:
            return await self._thread.run(partial(self._transaction, query))
        except (Error, OSError) as exc:
            log.exception("the store of contexts failed")
            # Do not use str(exc) of an OSError: the client must not see the path of the file.
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise ToolError(
                "CONTEXT_UNAVAILABLE",
                f"The store of contexts cannot be used: {reason}",
                suggestion="Try again later; the server's log says more",
            ) from None

    def _transaction(self, query: Callable[[], T]) -> T:
        """Delete the contexts that are too old, then run a query, in one transaction.

        Returns the result of the query.
        """
        database = self._database or self._open()
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute("DELETE FROM contexts WHERE used <= ?", (self._clock() - self._ttl_s,))
            result = query()
            database.execute("COMMIT")
        except BaseException:
            # SQLite itself ends the transaction for some errors, such as a full disk.
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> Connection:
        """Open the database, and create it if it does not exist. Returns the connection."""
        import sqlite3

        if self._path is not None:
            # Create the file with the mode 0o600. SQLite gives its additional files the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
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

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _execute(self, statement: str, *values: Any) -> Cursor:
        assert self._database is not None
        return self._database.execute(statement, values)

    def _touch(self, handle: str) -> None:
        """Record that a context is used now. Raises ToolError if it does not exist."""
        updated = self._execute(
            "UPDATE contexts SET used = ? WHERE handle = ?", self._clock(), handle
        )
        if updated.rowcount == 0:
            raise ToolError(
                "CONTEXT_NOT_FOUND",
                f"There is no context {handle[:MAX_HANDLE]!r}",
                suggestion=f"Contexts are forgotten {self._ttl_s:g} seconds after their last use; "
                f"begin a new one with set_context",
            )

    def _set(
        self,
        handle: str | None,
        key: str,
        value: bytes,
    ) -> str:
        """Store a value, and return the handle of its context.

        handle: the handle; None to create a context.
        value: the value as JSON.
        """
        # The size in bytes of the entry that is replaced, its key and its value; None without one.
        replaced_bytes: int | None = None
        if handle is not None:
            self._touch(handle)
            # max() gives the size of the one entry with this key, or NULL.
            [(keys, replaced_bytes)] = self._execute(
                "SELECT count(*),"
                " max(CASE WHEN key = ? THEN length(CAST(key AS BLOB)) + length(value) END)"
                " FROM entries WHERE handle = ?",
                key,
                handle,
            )
            if replaced_bytes is None and keys >= self._max_keys:
                raise ToolError(
                    "CONTEXT_FULL",
                    f"The context has {keys} keys, and may have no more",
                    suggestion="Replace the value of a key, or begin a new context",
                )
        else:
            handle = "ctx_" + os.urandom(16).hex()
            self._execute(
                "INSERT INTO contexts (handle, used) VALUES (?, ?)", handle, self._clock()
            )
        self._execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", handle, key, value)
        size = len(key.encode()) + len(value) - (replaced_bytes or 0)
        self._execute("UPDATE contexts SET bytes = bytes + ? WHERE handle = ?", size, handle)
        self._drop_oldest(handle)
        return handle

    def _drop_oldest(self, handle: str) -> None:
        """Delete the least recently used contexts until the remaining ones are within the limits.

        handle: the handle of the context that was just changed; it is not deleted.
        """
        [(count, size)] = self._execute("SELECT count(*), sum(bytes) FROM contexts")
        while count > 1 and (count > self._max_contexts or size > self._max_bytes):
            [(oldest, freed)] = self._execute(
                "SELECT handle, bytes FROM contexts WHERE handle <> ? ORDER BY used, rowid LIMIT 1",
                handle,
            )
            self._delete(oldest)
            count, size = count - 1, size - freed

    def _all(self, handle: str) -> dict[str, Any]:
        """Return all keys of a context with their values. Raises ToolError if it does not exist."""
        self._touch(handle)
        rows = self._execute(
            "SELECT key, value FROM entries WHERE handle = ? ORDER BY key", handle
        ).fetchall()
        return {key: decode(value) for key, value in rows}

    def _delete(self, handle: str) -> None:
        self._execute("DELETE FROM contexts WHERE handle = ?", handle)
