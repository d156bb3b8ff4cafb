"""Lower bounds on the step of a plan, and of all plans that share its first decisions."""
