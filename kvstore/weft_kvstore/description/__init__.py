"""What a store is: its description, as people write it and as programs do, checked."""
