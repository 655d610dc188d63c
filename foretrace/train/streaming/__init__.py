"""Learning from a stream that need not end: every item is predicted first and learned from then, in flat memory.

`items.py` reads sources and checks what they give, `learning.py` is one gathered piece of steps as one compiled
function, `window.py` keeps metrics over a sliding window and a history of bounded length, `run.py` joins them with
checkpoints and signals, `result.py` is what a stream leaves, and `entry.py` has the two functions that users call.
"""
