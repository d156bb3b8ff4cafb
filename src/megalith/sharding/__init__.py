"""Tables over many processes: plan where each part goes, and train with it there."""
