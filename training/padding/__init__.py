"""What `training.analyze_padding` measures and shows.

`measuring` samples a dataset into the columns of `figures`; `summary` takes means and shares of
them; `checklist` judges them, by `example_faults` among others; `tables` and `plots` show them.
`example_faults` and `pictures` are `training.padding.feed_report`'s, too.
"""
