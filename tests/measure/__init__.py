"""Tests of decoder.measure."""
