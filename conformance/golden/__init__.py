"""The vectors as a whole: every definition, the committed files made of them, and fresh cases of a seed."""
