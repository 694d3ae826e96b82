"""Studies: what a network costs, planned and counted instead of run."""
