"""Serves several backends as one.

compose() (compose.py) is the public function; proxy/servers.py serves the servers of a file in the
same way. Both make a ComposedBackend, which uses the other modules of this package.
"""
