"""Python types <-> JSON Schema.

The package reads signatures of handlers, decodes arguments, converts return values to results,
validates values against hand-written schemas, and matches URI templates.
"""
