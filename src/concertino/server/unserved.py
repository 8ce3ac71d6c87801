"""Reports scripts that serve nothing, and scripts that serve an empty server by mistake.

A script serves nothing if `server.run()` is missing at its end, or if sys.exit() comes before it.
When such a process ends, server.py calls report_unserved_script(). When an empty server starts and
the script has made other servers, server_backend.py calls warn_of_other_servers().
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["report_unserved_script", "warn_of_other_servers"]

# A script that contains one of these texts probably serves under some condition that was not met.
# Then nothing is written to stderr.
SERVES = ("run(", "serve(", "Host(", "Client(")


def report_unserved_script(server_class: type) -> None:
    """Report that the script has made a server but has not served it. Called at the process's end.

    The MCP client of the script, if there is one, gets the report as an error response. If the
    script contains no call that serves, such as run(), the report is also written to stderr.
    server_class: the class Server, which this module cannot import.
    """
    # sys.argv, because the main module has no __file__ any more when the process ends.
    path = Path(sys.argv[0])
    # Say nothing if the process ran no script, or is a console. sys.last_value exists if an
    # exception has ended the script, which was reported already.
    if path.suffix != ".py" or sys.flags.interactive or hasattr(sys, "last_value"):
        return
    try:
        source = path.read_text()
    except (OSError, ValueError):
        return
    from concertino.runtime.refusal import refuse_script_client

    main = vars(sys.modules["__main__"])
    names = [name for name, value in main.items() if isinstance(value, server_class)]
    has_serving_call = any(word in source for word in SERVES)
    text, advice = "", ""
    if names and not has_serving_call:
        text = f"{path.name} has made a server and ended without serving it: nothing calls run()"
        advice = f'Add at its end:\n\nif __name__ == "__main__":\n    {names[0]}.run()'
    elif not names:
        text, advice = _describe_server_in_function(path, has_serving_call=has_serving_call)
    if not text:
        # A SystemExit may have ended the script. Python has printed its text and does not store it.
        # Do not wait for a request, because this script may not be used as a server.
        text = f"{path.name} has ended before it served; its stderr may say why"
        refuse_script_client(text, waits=False)
        return

    command = f"\n\nor start it with: concertino serve {path}" if names else ""
    sys.stderr.write(f"{text}. {advice}{command}\n")
    refuse_script_client(text)


def _describe_server_in_function(path: Path, *, has_serving_call: bool) -> tuple[str, str]:
    """Return an error text and advice if a function of the script makes the server.

    Returns ("", "") if no function makes a server, or if the script may have served it.
    has_serving_call: whether the script contains a call that serves, such as run().
    """
    from concertino.backend.server_source import server_in_function, uncalled_function

    maker, line = server_in_function(path)
    if not maker:
        return "", ""
    if (caller := uncalled_function(path, maker)) is not None:
        call = f"asyncio.run({caller.name}())" if caller.is_async else f"{caller.name}()"
        where = "in line" if caller.name == maker else f"in {maker}(), line"
        return (
            f"{path.name} has ended without serving: nothing calls {caller.name}(), which makes a "
            f"server {where} {line}",
            f'Add at its end:\n\nif __name__ == "__main__":\n    {call}',
        )
    if has_serving_call:
        return "", ""
    return (
        f"{path.name} has made a server in {maker}(), line {line}, and ended without serving it: "
        "nothing calls run()",
        "Call its run() at the end of the function",
    )


def warn_of_other_servers(filled: Mapping[str, str], served: str, file: str) -> None:
    """Log a warning that the served server is empty, although another server of the script is not.

    filled: variable -> the name of the server in this variable, for each other server that has
        tools, prompts or resources.
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
