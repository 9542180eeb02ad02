"""L5: training of draft heads on texts that the target wrote. Nothing else of the package imports it."""
