"""How fast eager and a capture are."""
