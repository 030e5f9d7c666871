"""Makes third-party text, such as the name of a file or a class, safe to show in a terminal or a page."""

__all__ = ["on_one_line", "printable"]


def printable(text: str) -> str:
    """Escapes the characters that a terminal interprets or cannot show, such as NUL in a file name."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def on_one_line(text: str) -> str:
    """Escapes the same characters as `printable`, and also line breaks, which a file name may contain."""
    return printable(text).replace("\n", "\\n")
