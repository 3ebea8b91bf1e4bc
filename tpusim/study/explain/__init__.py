"""Why a layer takes as long as it does: measured by making one thing easier at a time."""
