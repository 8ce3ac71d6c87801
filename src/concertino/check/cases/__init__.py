"""The cases, one room for each section; each ends with its table. What they share is in `refusals`."""
