"""Learning rules, one per file on one small contract. Nothing is here yet."""
