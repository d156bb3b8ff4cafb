"""Cards: what they are asked, what they run, and how they are started."""
