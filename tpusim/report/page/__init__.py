"""A run or a sweep as one HTML page that needs nothing else: data prepared here, drawn in the reader's browser."""
