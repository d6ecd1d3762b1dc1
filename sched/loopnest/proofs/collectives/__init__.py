"""Collectives: does the body do what the declaration says?"""
