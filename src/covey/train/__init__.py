"""Training: plain functions over an ensemble, batches and an optimiser."""
