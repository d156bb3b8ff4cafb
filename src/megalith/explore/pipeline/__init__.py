"""Pipeline schedules and their exact simulation: no models, no machines, only an order and seconds."""
