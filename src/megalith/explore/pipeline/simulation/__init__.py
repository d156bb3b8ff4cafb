"""The engines behind `simulate`: a schedule and its costs become a flat program, which is then run."""
