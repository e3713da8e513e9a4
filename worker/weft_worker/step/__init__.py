"""One run of a plan: its values, what carries it out, and how its nodes become the engine's work."""
