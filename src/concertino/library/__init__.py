"""A folder of Markdown as a Backend: resources that clients list, read and search, and prompts.

Front matter (PyYAML) and searching (tantivy) need the extra `library`.
"""
