"""What one run does in Python: what it reads, writes and calls. Knows nothing of front ends and of judging."""
