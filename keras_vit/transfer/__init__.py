"""What a trained network is worth elsewhere: fine-tuning protocols, frozen features, VTAB, ReaL."""
