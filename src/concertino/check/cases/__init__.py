"""The cases, one or two modules for each section of docs/reference/check.md."""
