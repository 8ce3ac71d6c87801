"""Python types <-> JSON Schema.

The package reads signatures of handlers, decodes arguments, converts return values to results,
validates values against hand-written schemas, and matches URI templates. It has no I/O and knows
nothing of sessions; server/ uses it when a function is registered and when it is called.
"""
