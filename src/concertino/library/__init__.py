"""A directory of Markdown as a Backend: resources that clients list, read and search, and prompts.

Front matter (PyYAML) and searching (tantivy) need the extra `library`. The modules, in an order for
reading:

- library.py has the Library, which loads the directories in a thread and follows their changes.
- Loading: folder.py lists and reads files, file_parsing.py makes Documents and PromptFiles of them,
  and file_loader.py finds out what has changed. document_registry.py has the result, by URI.
- Requests: library_handlers.py answers them. uris.py says which URIs a library has, and
  resource_reader.py reads them.
- Searching: query_params.py parses a Query, index.py finds the documents, analysis.py makes search
  terms of text, and rendering.py writes the hits as a text. cache.py keeps the index for the next
  start.
- lint.py finds the defects that `concertino lint` reports.
"""
