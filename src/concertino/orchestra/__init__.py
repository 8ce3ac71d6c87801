"""The Orchestra plugin protocol: its wire, its certificates, the links it travels over, and plugins. The extra [orchestra]."""
