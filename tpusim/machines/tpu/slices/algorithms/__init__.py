"""Algorithms of collectives, a module each, and which of them the compiler takes (`registry`)."""
