"""Pictures of learning: curves, rasters, traces. Nothing is here yet."""
