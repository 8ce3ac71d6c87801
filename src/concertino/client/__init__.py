"""Clients: they start servers, or connect to them, and call what they offer."""
