"""Comparisons with other ways to generate, environment records, synthetic model shapes. The scripts stand on it."""
