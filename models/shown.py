"""Makes third-party text, such as the name of a file or a class, safe to show in a terminal or a page."""

__all__ = ["on_one_line", "printable"]


def printable(text: str) -> str:
    """Escapes characters that a terminal interprets or cannot show, such as NUL in the name of a file."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def on_one_line(text: str) -> str:
    """Like `printable`, but also escapes line breaks, which the name of a file may contain."""
    return printable(text).replace("\n", "\\n")
