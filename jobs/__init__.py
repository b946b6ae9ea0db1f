"""Jobs: what a client needs to submit a render, follow it and fetch its result. Needs no GPU stack."""
