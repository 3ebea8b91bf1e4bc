"""From a layer to a Program."""
