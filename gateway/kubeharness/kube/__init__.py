"""What gateways and workers ask of the Kubernetes API. The client is imported when first used."""
