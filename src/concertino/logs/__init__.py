"""Logging to stderr: levels, formats, redaction of secrets, and a writer that never blocks.

configure() installs a StderrHandler (handler.py), which gets all log records of this package. The
handler drops records if there are too many, and formats the others (formats.py). It removes secrets
from the text with the Redactor (redact.py), and passes the text to a BoundedWriter (writer.py),
which writes it to stderr. StderrRedirect (stderr_redirect.py) sends the output of print() to the
same writer.
"""
