"""`python -m concertino`."""

from concertino.cli import main

main()
