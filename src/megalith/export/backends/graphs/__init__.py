"""Programs as graphs of other libraries: one lowering to few primitives, and a builder for each library."""
