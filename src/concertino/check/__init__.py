"""Tests how an MCP server over stdio reacts to faults: `concertino check -- COMMAND...`.

Each case starts the server as a new process, causes one fault, such as a malformed message, and
checks the server's reaction.

    findings.py           verdicts, and the exceptions that report a finding
    messages.py           JSON-RPC messages as the check writes and reads them
    process_stats.py      memory, descriptors, threads and CPU time of a process group
    server_output.py      what one server process wrote to stdout: messages, and stray lines
    stdio_setup.py        the kinds of stdin, stdout and stderr that a process can be started with
    server_process.py     one process of the server, its pipes and its output
    server_under_test.py  facts about the server that are found out before the first case
    case_context.py       the methods with which a case talks to its server process
    case.py               the description of a case: one fault and the expected reaction
    cases/                the cases, one or two modules for each section of docs/reference/check.md
    table.py              all cases, in order
    invariants.py         the checks that follow every case
    run.py                runs the cases, each with a new process of the server
    report.py             the results as terminal text and as a JSON document
    reference_server.py   a server with every tool that the cases look for

An *era* is "legacy" for the revisions up to 2025-11-25, which begin with `initialize`, or "modern"
for 2026-07-28, which has no handshake. A *policy* is a rule of this project that is stricter than
the specification. The verdict `wrong` means that the server broke a MUST of the specification, or
an invariant (invariants.py); `differs` means that it keeps the specification but not a policy.

The server is untrusted: every wait has a time limit, the recorded output has a size limit, and
every started process is killed at the end. Requires POSIX. Resources are measured on Linux only,
through /proc.
"""
