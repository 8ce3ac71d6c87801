"""compose() serves several backends as one; a server file is served by means of it, too."""
