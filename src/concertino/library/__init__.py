"""A folder of Markdown as a backend: resources to list, read and search, and prompts.

Needs the extra `library` for front matter (PyYAML) and for searching (tantivy).
"""
