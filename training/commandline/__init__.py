"""How the words of a command line become the options of a command."""
