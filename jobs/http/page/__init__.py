"""The page of the farm: forms, what runs, what is done. HTML from the server, with a little JavaScript over it."""
