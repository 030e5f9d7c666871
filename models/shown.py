"""Third-party text, such as the name of a file or a class, as a terminal and a page may show it."""

__all__ = ["on_one_line", "printable"]


def printable(text: str) -> str:
    """The text with escapes for what a terminal obeys or cannot show, such as NUL in the name of a file."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def on_one_line(text: str) -> str:
    """As `printable`, with an escape for the end of a line, too, as the name of a file may have."""
    return printable(text).replace("\n", "\\n")
