"""A site's node and a curious server, for a deployment."""
