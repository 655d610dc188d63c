"""What was found, for people: the report as text, and the graph as a picture."""
