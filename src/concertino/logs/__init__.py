"""Logging to stderr: formats, levels, redaction of secrets, and a writer that never blocks.

handler          configure(), logger(), and the logging handler with its limit
writer           BoundedWriter: buffers lines for a descriptor; drops them when nobody reads
stderr_redirect  StderrRedirect: sys.stdout and sys.stderr while the protocol owns stdout
formats          a log entry as a line, as JSON, or in the trace profile
correlation      the request and trace that a log line belongs to
redact           takes secrets out of texts and values
"""
