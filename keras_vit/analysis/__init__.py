"""Seeing inside: filters, positions, attention, as arrays, as figures and as one report."""
