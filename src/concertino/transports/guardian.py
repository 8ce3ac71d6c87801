"""The guardian: a process that ends the children of this process if this process is killed.

A process that gets SIGKILL cannot close connections or end process groups. Most servers notice the
end of their input and end. A server that does not, and the processes that it has started, would
remain for ever. The guardian reads from a pipe whose other end only this process has open. In an
orderly end, this process writes a line to the pipe. If the pipe ends without that line, the
guardian ends every process whose environment has a mark of this process (process_marks.py,
orphans.py). The guardian of a single program ends only the processes that have that program's mark.

While the guardian waits, it is a shell, which takes 0.1 MB of memory and no CPU time. It becomes a
Python interpreter only when there are processes to end. It runs in a separate session, so that it
survives when the process group of this process is killed.

On systems without /proc, such as macOS, there is no guardian, because the marks could not be found.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

from concertino.transports.process_marks import GUARDIAN, STARTED_BY, new_mark

__all__ = ["Guardian", "guardian"]

log = logging.getLogger("concertino.process")

SHELL = "/bin/sh"
# The shell ignores signals that are meant for this process, which then ends in order. `read` fails
# at the end of the pipe.
SCRIPT = 'trap "" HUP INT TERM; read -r word || exec "$@"'
# The code for the Python interpreter. Its arguments are the directory that contains this package,
# and the arguments of end_orphans().
CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from concertino.transports.orphans import end_orphans
end_orphans(sys.argv[2], int(sys.argv[3]))
"""
# How many seconds to wait for the guardian's end, which usually takes less than a millisecond.
END_S = 1.0


class Guardian:
    """Starts and ends a guardian, a process that ends our children if this process is killed.

    The guardian runs while at least one caller of acquire(), such as a Proxy, has not called
    release(). The object `guardian` of this module ends all programs that this process has started.

    mark: the mark (process_marks.py) of the single program that the guardian ends; "" for all
        programs that this process starts. The processes that a program has started are ended, too.
    """

    def __init__(self, mark: str = "") -> None:
        self._program_mark = mark
        # How many callers of acquire() have not called release().
        self._users = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the id of the guardian's process; None while there is none."""
        return None if self._process is None else self._process.pid

    def acquire(self) -> None:
        """Start the guardian, unless it already runs. The caller must call release() later.

        If the guardian cannot be started, this is logged. Where there is no /proc, such as on
        macOS, nothing is started.
        """
        self._users += 1
        if self._process is not None:
            if self._process.poll() is None:
                return
            _close(self._process)
            self._process = None
        mark = new_mark()
        if not mark.namespace or not sys.executable:
            return
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
        # Without the user's environment variables and site-packages, and without writing bytecode.
        python = [sys.executable, "-I", "-S", "-B", "-c", CODE, root]
        # Do not pass on the mark of this process. Otherwise code that ends this process by its mark
        # would end the guardian too.
        env = {name: value for name, value in os.environ.items() if name != STARTED_BY}
        env[GUARDIAN] = "1"
        orphans = [self._program_mark or mark.owner_suffix, str(mark.started_at)]
        command = [SHELL, "-c", SCRIPT, "guardian", *python, *orphans]
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=env,
                start_new_session=True,
            )
        except OSError as exc:
            log.info("no guardian, so servers may stay if this process is killed: %s", exc)

    def release(self) -> None:
        """End the guardian, unless another caller of acquire() still needs it."""
        self._users -= 1
        process = self._process
        if self._users or process is None:
            return
        self._process = None
        assert process.stdin is not None
        try:
            process.stdin.write(b"end\n")
            process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            # The guardian was killed or stopped, so it does not end by itself.
            process.kill()
            process.wait()
        _close(process)

    def forget(self) -> None:
        """Forget the guardian in a forked process, because it belongs to the parent process."""
        process, self._process = self._process, None
        self._users = 0
        if process is not None:
            # Close the inherited end of the pipe, so that the guardian does not wait for this
            # process too.
            _close(process)
            # With a return code, Popen does not wait for the guardian, which is no child of ours.
            process.returncode = 0


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


guardian = Guardian()
os.register_at_fork(after_in_child=guardian.forget)
