"""compose() serves several backends as one, and the servers of a servers file as one."""
