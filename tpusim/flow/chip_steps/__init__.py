"""A step of several chips: layers and collectives beside one another, in whole cycles, and three engines of it."""
