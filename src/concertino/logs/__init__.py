"""Logging to stderr: levels, formats, redaction of secrets, and a writer that never blocks.

handler          configure() and logger(): the logging handler, its level and its rate limit
writer BoundedWriter: buffers output for a descriptor, drops lines that are not read stderr_redirect
StderrRedirect: replaces sys.stdout and sys.stderr while stdout carries MCP
formats          formats a log record as a line, as JSON, or in the trace profile
redact           Redactor: removes secrets from texts, JSON and Python objects
secret_checks    fast checks whether a text may contain a secret
secret_patterns  finds tokens and secret fields in a text
escapes          undoes escapes such as `\\n`, for the Redactor
"""
