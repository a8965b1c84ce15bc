"""How cases are run: the parent side (processes, limits, resume) and the child side (the stages)."""
