"""Serves several backends as one.

compose() (compose.py) is the public function; proxy/servers.py serves the servers of a file in the
same way. Both make a ComposedBackend (composed_backend.py), with the settings of rules.py. The
modules that it uses, in an order for reading:

- part_starts.py starts the parts, and part_calls.py closes removed ones after their calls.
- call_router.py sends each call to its part; other_methods.py finds the part for extensions.
- part_view.py translates between a part and clients: names (part_names.py), URIs
  (resource_owners.py, result_uris.py) and task ids (task_ids.py).
- composed_lists.py joins lists, whose pages part_pages.py fetches; task_lists.py joins tasks, and
  composed_features.py joins features. resource_directory.py keeps track of the parts' resources.
"""
