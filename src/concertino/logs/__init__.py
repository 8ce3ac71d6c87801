"""Logging to stderr: levels, formats, redaction of secrets, and a writer that never blocks.

configure() installs a StderrHandler (handler.py), which gets all log records of this package. The
handler drops records if there are too many, makes text of the others (formats.py), removes secrets
from the text with the Redactor (redact.py), and passes it to a BoundedWriter (writer.py), which
writes it to stderr. StderrRedirect (stderr_redirect.py) sends the output of print() to the same
writer.
"""
