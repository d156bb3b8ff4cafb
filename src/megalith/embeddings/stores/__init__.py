"""What keeps the rows of tables: in memory, or in segment files under a cache in memory."""
