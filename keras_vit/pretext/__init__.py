"""Masked patch prediction, the paper's own self-supervised objective (section 4.6, appendix B.1.2)."""
