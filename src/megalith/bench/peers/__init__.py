"""The tools that are measured beside Megalith, and Megalith itself, behind one small interface."""
