"""Serves several backends as one.

A backend is an object that answers MCP requests, such as a Server. compose() (compose.py) is the
public function; proxy/servers.py serves the servers of a server file in the same way. Both make a
ComposedBackend (composed_backend.py), with the settings of rules.py. The backends of a
ComposedBackend are called its parts. The other modules, in an order for reading:

- part_starts.py starts the parts, and part_calls.py closes a removed part after its calls.
- call_router.py sends each call to its part; other_methods.py finds the part for the methods of
  extensions.
- part_view.py translates between a part and clients: names (part_names.py), URIs
  (resource_owners.py, result_uris.py) and task ids (task_ids.py; both use mapped_fields.py).
- composed_lists.py joins lists, whose pages part_pages.py fetches; task_lists.py joins lists of
  tasks, and composed_features.py joins features. resource_directory.py asks the parts which
  resources they have.
"""
