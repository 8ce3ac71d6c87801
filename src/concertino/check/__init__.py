"""A fault check for any MCP server that speaks over stdio, in whatever language: `concertino check -- COMMAND...`.

    case.py       what a case is, what it can find, and the rows that are only bytes and an answer
    cases/        the cases, one room for each section of docs/reference/check.md
    table.py      all of them in order
    subject.py    what the server under check is: eras, tools, limits; found out before the first case
    child.py      one process of that server, its pipes and what came through them
    census.py     what that process and its children hold: memory, descriptors, processor time
    trial.py      what a case works with: a child, requests in the server's era, waits with a bound
    oracle.py     what holds after every case
    run.py        one case after the other, each against a process of its own
    report.py     the terminal and the JSON document
    toolbox.py    a server that has every tool the cases look for

Nothing here trusts the server: every wait has an end, what is kept of its output has a limit, and what was started is killed.
Policies of our own (verdict `differs`) are told from the protocol's musts (`wrong`) by one rule: only a client that keeps the
rules can be wronged, or the oracle. Requires POSIX; what /proc tells is checked on Linux alone.
"""
