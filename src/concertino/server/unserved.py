"""Reports scripts that serve nothing, and scripts that serve an empty server by mistake.

A script serves nothing if `server.run()` is missing at its end, or if sys.exit() comes before it.
server/server.py calls report_unserved_script() when a process ends that has served nothing. It
calls warn_of_other_servers() when an empty server starts and the script has made other servers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["report_unserved_script", "warn_of_other_servers"]

# A script that contains one of these texts serves under some condition, so nothing is written to
# stderr.
SERVES = ("run(", "serve(", "Host(", "Client(")


def report_unserved_script(server_class: type) -> None:
    """Report that the script has made a server but has not served it. Called at the process's end.

    The MCP client of the script, if there is one, gets this as an error response. If the script
    does not contain a call of run(), it is also written to stderr.
    server_class: the class Server, which this module cannot import.
    """
    # When the process ends, the main module has no __file__ any more.
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
        # A SystemExit may have ended the script. Python has printed its text and does not store it.
        # Do not wait for a request, because perhaps nobody uses this script as a server.
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
    """Log a warning that the served server is empty, while others of the same script are not.

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
