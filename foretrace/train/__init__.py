"""Training: loops, metrics and checkpoints. Nothing is here yet."""
