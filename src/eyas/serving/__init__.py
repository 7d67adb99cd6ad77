"""The verifier behind HTTP: a vLLM server that Eyas starts and stops, or servers that already run."""
