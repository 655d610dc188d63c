"""Tasks: generators with published settings, and data that ships in packages. Nothing is here yet."""
