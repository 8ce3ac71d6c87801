"""Python types <-> JSON Schema: signatures, arguments, results, URI templates, patterns."""
