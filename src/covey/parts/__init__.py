"""Pieces that methods are made of."""
