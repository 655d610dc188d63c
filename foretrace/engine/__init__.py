"""Numbers: forward, linearise, sweep and contract over a graph, for one step and for blocks. Nothing is here yet."""
