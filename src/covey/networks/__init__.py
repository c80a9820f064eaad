"""What covey finds out about a network before it becomes an ensemble."""
