"""What to tell the user: patch, overrides, Markdown and the terminal, all from one set of formatted figures."""
