"""Recipes by name; each module's docstring says what it is for and what to expect."""
