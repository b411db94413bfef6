"""Training data from probe rows: sampled, tokenised and packed on the fly, for MaxText.

Start reading at `dataset`; `tokenizer` says what the tokens mean.
"""
