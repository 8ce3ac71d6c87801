"""Several backends as one: compose(), and what files of servers are served with."""
