"""The best gradient for a memory: the candidates, what each needs, how far each is from BPTT, and the choice."""
