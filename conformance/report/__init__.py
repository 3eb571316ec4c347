"""The report that people look at: one page, without anything from elsewhere."""
