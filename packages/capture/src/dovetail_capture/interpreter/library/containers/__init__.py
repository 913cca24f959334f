"""Methods of lists, dictionaries, sets and views of them."""
