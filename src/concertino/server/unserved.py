"""Reports a script that serves nothing, or an empty server instead of another one.

The usual causes of the first are a missing `server.run()` at the end of the file, and sys.exit()
before it. server/server.py calls this when the process ends and has served nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["report_unserved_script", "warn_of_other_servers"]

# A script that contains one of these texts serves under some condition, so it is not reported.
SERVES = ("run(", "serve(", "Host(", "Client(")


def report_unserved_script(server_class: type) -> None:
    """Answer the MCP client of the script, and write to stderr if the script never calls run().

    Called when the process ends. server_class: Server.
    """
    # At this time the main module has no __file__ any more.
    path = Path(sys.argv[0])
    # sys.last_value exists if an exception has ended the script. That was reported already.
    if path.suffix != ".py" or sys.flags.interactive or hasattr(sys, "last_value"):
        return
    try:
        source = path.read_text()
    except (OSError, ValueError):
        return
    from concertino.runtime.refusal import refuse_script_client

    main = vars(sys.modules["__main__"])
    names = [name for name, value in main.items() if isinstance(value, server_class)]
    if not names or any(word in source for word in SERVES):
        # Python does not tell which SystemExit has ended the script; it has printed its text. Do
        # not wait for a request: perhaps nobody uses this script as a server.
        text = f"{path.name} has ended before it served; its stderr may say why"
        refuse_script_client(text, waits=False)
        return

    text = f"{path.name} has made a server and ended without serving it: nothing calls run()"
    sys.stderr.write(
        f"{text}. Add at its end:\n\n"
        f'if __name__ == "__main__":\n    {names[0]}.run()\n\n'
        f"or start it with: concertino serve {path}\n"
    )
    refuse_script_client(text)


def warn_of_other_servers(filled: Mapping[str, str], served: str, file: str) -> None:
    """Log a warning that the served server is empty, and others of its file are not.

    filled: variable -> name of each other server that has tools, prompts or resources.
    served: the name of the server that is served.
    file: the path of the file that calls run().
    """
    variable, name = next(iter(filled.items()))
    logging.getLogger(f"concertino.{served}").warning(
        "%s: the server %r is served, and has no tools, prompts or resources; the server %r has: "
        "call %s.run() instead, or serve both with compose()",
        Path(file).name,
        served,
        name,
        variable,
    )
