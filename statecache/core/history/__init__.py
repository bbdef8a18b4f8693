"""What Postgres keeps of every change, and how it is read back."""
