"""vLLM, its CPU build: `engine` asks it, one module per part holds the cases and compares."""
