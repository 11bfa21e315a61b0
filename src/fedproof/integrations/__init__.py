"""fedproof inside other frameworks. Importing this package imports none of them."""
