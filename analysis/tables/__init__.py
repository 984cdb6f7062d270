"""Tables: scores, pairs, sites, clients, and their Markdown, LaTeX and CSV."""
