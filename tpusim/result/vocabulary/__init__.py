"""Every state, figure and field once: its name, label, unit, better direction, look and meaning. The rest reads it."""
