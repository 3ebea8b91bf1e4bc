"""Every state, figure and field once: its name, label, unit, better direction, look and meaning. All other rooms read
them.
"""
