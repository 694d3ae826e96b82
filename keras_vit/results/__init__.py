"""Measured and published numbers: one tidy store per study, tables of them, the paper's rows as data."""
