"""Reports a script that makes a server, registers its tools, and ends without serving it."""

from __future__ import annotations

import sys

__all__ = ["report_unserved_script"]

# A script that contains one of these serves on some condition that it knows better.
SERVES = ("run(", "serve(", "Host(", "Client(")


def report_unserved_script(server_class: type) -> None:
    """Write to stderr that the script has served nothing, and answer its client, if it has one.

    Called when the process ends, and nothing was ever served in it.
    """
    main = vars(sys.modules["__main__"])
    names = [name for name, value in main.items() if isinstance(value, server_class)]
    # The last condition: an exception has ended the script.
    if not names or sys.flags.interactive or hasattr(sys, "last_value"):
        return
    # Imported here: most processes need neither.
    from pathlib import Path

    from concertino.runtime.refusal import refuse_script_client

    # The main module has no __file__ any more.
    path = Path(sys.argv[0])
    try:
        source = path.read_text()
    except (OSError, ValueError):
        return
    if any(word in source for word in SERVES):
        return

    text = f"{path.name} has made a server and ended without serving it: nothing calls run()"
    sys.stderr.write(
        f"{text}. Add at its end:\n\n"
        f'if __name__ == "__main__":\n    {names[0]}.run()\n\n'
        f"or start it with: concertino serve {path}\n"
    )
    refuse_script_client(text)
