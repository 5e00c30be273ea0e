"""A Recipe and a prompt -> Results and a trace."""
