"""Tests of the graph layer, and what they share: seeds, random graphs."""
