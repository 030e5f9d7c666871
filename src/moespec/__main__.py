"""The command `moespec`, also available as `python -m moespec`."""

import os
import sys
from collections.abc import Sequence

TRAINING = [["train"], ["finetune"], ["study"], ["launch"]]
PROGRAMS = ("moespec", "__main__.py")
LARGE_PAGES = "glibc.malloc.hugetlb"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None and words[:1] in TRAINING and os.path.basename(sys.argv[0]) in PROGRAMS:
        use_large_pages()
    if words[:1] == ["conformance"]:
        from moespec.conformance.__main__ import keep_apart

        keep_apart(words[1:])  # this must run before any other import
    from moespec import cli

    return cli.main(arguments)


def use_large_pages() -> None:
    """Restarts this process with large memory pages, on Linux, unless the environment already sets their use.

    The C library frees blocks over 32 MiB immediately, so gradients of many experts use new pages at each step. Large pages
    reduce the number of pages a hundredfold. The library reads this setting only when a process starts.
    """
    before = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and LARGE_PAGES not in before:
        os.environ["GLIBC_TUNABLES"] = f"{before}:{LARGE_PAGES}=1".lstrip(":")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
