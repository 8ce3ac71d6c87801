"""Logging to stderr: levels, formats, redaction of secrets, and a writer that never blocks.

A log record takes this path: StderrHandler (handler.py), which configure() installs, limits the
rate; make_entry() (formats.py) formats the record; redactor() (redact.py) removes secrets; and
BoundedWriter (writer.py) writes the line. StderrRedirect (stderr_redirect.py) sends the output of
print() to the same writer.
"""
