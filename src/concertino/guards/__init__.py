"""Guards: wrappers around any Backend that limit, time, cut, hide and watch what passes. Loaded when one is used, never before."""
