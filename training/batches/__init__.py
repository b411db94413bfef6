"""Units dealt to lanes: planning an epoch, packing, caching columns, iterator states."""
