"""Models and their caches."""
