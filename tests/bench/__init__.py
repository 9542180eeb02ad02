"""Tests of decoder.bench."""
