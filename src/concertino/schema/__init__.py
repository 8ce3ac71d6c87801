"""Python types <-> JSON Schema.

server/ uses this package when a function is registered and when it is called. The package has no
I/O and knows nothing of sessions.

- For a handler with annotations, arguments.py decodes the arguments of calls and return_values.py
  converts what it returns. Both read its signature (signature.py), and build a schema from each
  annotation (type_schema.py).
- For a tool with a hand-written schema, custom_schema.py checks the schema and validation.py checks
  the values.
- uri_template.py matches the URIs of resources, and elicitation_form.py makes forms from classes.
- violations.py has what all of these report: the places and reasons of invalid values.
"""
