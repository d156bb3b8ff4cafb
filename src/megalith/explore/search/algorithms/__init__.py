"""How a space is searched: best-first by lower bounds, then local moves; on several processes."""
