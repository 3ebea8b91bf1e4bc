"""Results for people: tables, plots, and reading results back."""
