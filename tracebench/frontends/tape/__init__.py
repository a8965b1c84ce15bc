"""The parts of the trace hook: the tape, what is checked at each call of it, and how a call is taken back."""
