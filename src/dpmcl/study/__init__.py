"""Studies: run the jobs that are missing from run folders, and return all results."""
