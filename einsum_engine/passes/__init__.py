"""Passes: each turns a Program into a Program before it is planned."""
