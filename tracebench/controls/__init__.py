"""Controls: instructions to a front end about one piece of a model, in one vocabulary for all front ends."""
