"""Python types <-> JSON Schema: function signatures, arguments, results, URI templates, patterns."""
