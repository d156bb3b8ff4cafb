"""`megalith bench tiers`: tables beyond memory, beside the same tables in memory and other stores on disk."""
