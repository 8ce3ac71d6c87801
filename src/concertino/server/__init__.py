"""Servers of typed Python functions."""
