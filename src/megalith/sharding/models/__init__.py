"""Tables of published models, for `megalith plan --tables NAME`."""
