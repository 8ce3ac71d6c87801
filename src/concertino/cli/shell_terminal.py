"""TerminalInput: reads lines on a terminal, with editing, completion by Tab, and a history.

Needs prompt_toolkit, the extra `shell`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from concertino.cli import CommandFailure
from concertino.cli.shell_input import Suggest
from concertino.installation import missing_extra
from concertino.logs.formats import escape_controls

try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.patch_stdout import patch_stdout
    from prompt_toolkit.shortcuts import CompleteStyle
except ImportError:
    raise CommandFailure(missing_extra("the interactive session", "shell")) from None

__all__ = ["TerminalInput"]

# A larger history is cut to half of this size when a session starts.
MAX_HISTORY_BYTES = 1 << 20


class TerminalInput:
    """Reads the lines of the interactive session from a terminal.

    Lines are kept in a history file, except those that begin with a space.
    """

    is_terminal = True

    def __init__(self) -> None:
        self._session = PromptSession[str](
            history=_open_history(),
            complete_style=CompleteStyle.MULTI_COLUMN,
            # Not with each key, because completion may ask the server for values.
            complete_while_typing=False,
        )
        # Answers to questions of a server are not in the history.
        self._questions = PromptSession[str](history=InMemoryHistory())

    async def read_line(self, prompt: str, suggest: Suggest | None) -> str:
        """Return the next line, without its newline.

        prompt: the text before the line.
        suggest: called to complete the last word of the line. None for the answer to a question of
            a server, which is not completed and not kept in the history.
        Raises EOFError for Ctrl-D, and KeyboardInterrupt for Ctrl-C.
        """
        session = self._questions if suggest is None else self._session
        completer = None if suggest is None else _Completer(suggest)
        # Print notes above the line that is being edited.
        with patch_stdout():
            return await session.prompt_async(prompt, completer=completer)


class _Completer(Completer):
    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        # prompt_toolkit calls get_completions_async() instead.
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion]:
        text = document.text_before_cursor
        suggestions, start = await self._suggest(text)
        for suggestion in suggestions:
            yield Completion(
                suggestion.text,
                start - len(text),
                # Names and descriptions come from the server, so they are untrusted.
                display=escape_controls(suggestion.text),
                display_meta=escape_controls(suggestion.about),
            )


class _FileHistory(FileHistory):
    def append_string(self, string: str) -> None:
        if not string.startswith(" "):
            super().append_string(string)


def _open_history() -> History:
    """Return the history of earlier sessions. Empty if its file cannot be used."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(home, "concertino", "shell-history")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Mode 0600, because arguments may be private.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.close(descriptor)
        if path.stat().st_size > MAX_HISTORY_BYTES:
            _cut(path)
    except OSError:
        return InMemoryHistory()
    return _FileHistory(path)


def _cut(path: Path) -> None:
    """Remove the older entries of a history file."""
    text = path.read_bytes()[-MAX_HISTORY_BYTES // 2 :]
    # Each entry begins with a comment, the time of the entry.
    _, mark, rest = text.partition(b"\n#")
    path.write_bytes(mark + rest)
