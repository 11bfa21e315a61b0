"""Tables, figures and self-contained pages: what is certified, at a glance."""
