"""What a plan will cost: memory per rank and step time, for any parallel layout, before the run."""
