"""Tests of the graph layer, and what they share: published examples, random graphs."""
