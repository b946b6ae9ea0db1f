"""Text that others have written, made harmless to a terminal."""


def plain(text: str) -> str:
    """With what moves the cursor, changes colours or turns the writing round as escapes, and all on one line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
