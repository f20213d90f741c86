"""`python -m draftconv`, the same as the `draftconv` command."""

from draftconv.cli import main

if __name__ == "__main__":
    main()
