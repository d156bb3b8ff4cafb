"""Time and bytes of operators, collectives and training states on a described machine."""
