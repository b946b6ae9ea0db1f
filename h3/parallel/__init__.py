"""How the single-device model is spread over ranks, applied from outside."""
