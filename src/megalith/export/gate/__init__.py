"""The gate: normalized entropy and AUC of a frozen model against the trained one, and costs of its parts."""
