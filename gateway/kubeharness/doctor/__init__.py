"""What lies between a caller and an agent, seen from outside: probes that watch, and findings drawn from them."""
