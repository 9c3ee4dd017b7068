"""Benchmarks: `python -m benchmarks`, and the scripts that README.md lists."""
