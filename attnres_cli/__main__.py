"""`python -m attnres_cli`: the same as the command `attnres`."""

from attnres_cli.cli.app import main

if __name__ == "__main__":
    main()
