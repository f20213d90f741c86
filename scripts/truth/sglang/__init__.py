"""SGLang's own code on a CPU: `engine` asks it, one module per part holds the cases and compares."""
