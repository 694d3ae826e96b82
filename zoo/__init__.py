"""Which models and weights exist, and how to get them into a model."""
