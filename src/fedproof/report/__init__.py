"""Tables, figures and one self-contained page."""
