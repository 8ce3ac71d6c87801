"""A fault check for any MCP server that speaks over stdio: `concertino check -- COMMAND...`.

    findings.py           verdicts, and the exceptions that report a finding
    messages.py           JSON-RPC messages as the check writes and reads them
    process_stats.py      memory, descriptors, threads and CPU time of a process group
    server_output.py      the messages and stray lines that one server process wrote to stdout
    stdio_setup.py        the kinds of stdin, stdout and stderr that a process can be started with
    server_process.py     one process of the server, its pipes and its output
    server_under_test.py  the server's eras and tools, found before the first case
    case_context.py       what a case works with: one process, requests, and waits with a time limit
    case.py               one fault and the expected reaction
    cases/                the cases, one or two modules for each section of docs/reference/check.md
    table.py              all cases, in order
    invariants.py         the checks that follow every case
    run.py                runs the cases, each against a process of its own
    report.py             the results as terminal text and as a JSON document
    reference_server.py   a server with every tool that the cases look for

The server is untrusted: every wait has a time limit, the recorded output has a size limit, and
every started process is killed in the end.

Two verdicts keep the protocol's rules and our own policies apart. `wrong` means that the server
broke a MUST towards a client that kept the rules itself, or broke an invariant. `differs` means
that only a policy of this project is not met.

Requires POSIX. Resources are measured through /proc, so on Linux only.
"""
