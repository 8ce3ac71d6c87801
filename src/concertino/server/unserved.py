"""Reports a script that has made a server, and ends without serving it.

The usual cause is a missing `server.run()` at the end of the file. server/server.py calls this when
the process ends and has served nothing.
"""

from __future__ import annotations

import sys

__all__ = ["report_unserved_script"]

# A script that contains one of these texts serves under some condition, so it is not reported.
SERVES = ("run(", "serve(", "Host(", "Client(")


def report_unserved_script(server_class: type) -> None:
    """Write to stderr that the script has served nothing, and answer its MCP client, if any.

    Called when the process ends. server_class: Server.
    """
    main = vars(sys.modules["__main__"])
    names = [name for name, value in main.items() if isinstance(value, server_class)]
    # sys.last_value exists if an exception has ended the script. That was reported already.
    if not names or sys.flags.interactive or hasattr(sys, "last_value"):
        return
    # Imported here, because most processes need neither.
    from pathlib import Path

    from concertino.runtime.refusal import refuse_script_client

    # At this time the main module has no __file__ any more.
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
