"""Joint search over placement, schedule and network: what `megalith explore search` asks."""
