"""How much of a model captured graphs hold."""
