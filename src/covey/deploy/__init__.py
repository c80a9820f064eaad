"""What comes after training: store, load, collapse."""
