"""What the charts render, and what a real API server says to it. `python -m charts` lints and writes the goldens."""
