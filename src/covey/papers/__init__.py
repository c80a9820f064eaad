"""What belongs to one experiment of the papers and to nothing else."""
